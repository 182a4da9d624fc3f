#pragma once

#include <string_view>

/// The keys of all options of the configuration, by section. This is the only place that spells
/// them: declarations (base/options.h) and messages use the constants. A test holds that.
namespace vlmtrain::keys {

namespace model {
inline constexpr std::string_view kPath = "model.path";
inline constexpr std::string_view kAdapter = "model.adapter";
inline constexpr std::string_view kFreezeVisionTower = "model.freeze_vision_tower";
inline constexpr std::string_view kFreezeProjector = "model.freeze_projector";
inline constexpr std::string_view kFreezeLanguageModel = "model.freeze_language_model";
inline constexpr std::string_view kFreezePerLayerEmbeddings = "model.freeze_per_layer_embeddings";
inline constexpr std::string_view kFreezeMaskEncoder = "model.freeze_mask_encoder";
inline constexpr std::string_view kAllowMissing = "model.allow_missing";
inline constexpr std::string_view kAllowUnexpected = "model.allow_unexpected";
inline constexpr std::string_view kResizeEmbeddings = "model.resize_embeddings";
inline constexpr std::string_view kQuantization = "model.quantization";
}  // namespace model

namespace lora {
inline constexpr std::string_view kRank = "lora.rank";
inline constexpr std::string_view kAlpha = "lora.alpha";
inline constexpr std::string_view kDropout = "lora.dropout";
inline constexpr std::string_view kTargetModules = "lora.target_modules";
inline constexpr std::string_view kModulesToSave = "lora.modules_to_save";
inline constexpr std::string_view kUseRslora = "lora.use_rslora";
inline constexpr std::string_view kUseDora = "lora.use_dora";
inline constexpr std::string_view kLoraplusLrRatio = "lora.loraplus_lr_ratio";
}  // namespace lora

namespace data {
inline constexpr std::string_view kTrain = "data.train";
inline constexpr std::string_view kTaskShares = "data.task_shares";
inline constexpr std::string_view kCurriculum = "data.curriculum";
inline constexpr std::string_view kEval = "data.eval";
inline constexpr std::string_view kColumns = "data.columns";
inline constexpr std::string_view kIgnoreKeys = "data.ignore_keys";
inline constexpr std::string_view kImageRoot = "data.image_root";
inline constexpr std::string_view kOutsideImageRoot = "data.outside_image_root";
inline constexpr std::string_view kMaxLength = "data.max_length";
inline constexpr std::string_view kOnTooLong = "data.on_too_long";
inline constexpr std::string_view kTextWindowTokens = "data.text_window_tokens";
inline constexpr std::string_view kTrainOn = "data.train_on";
inline constexpr std::string_view kPacking = "data.packing";
inline constexpr std::string_view kPackMaxTokens = "data.pack_max_tokens";
inline constexpr std::string_view kPackMaxImages = "data.pack_max_images";
inline constexpr std::string_view kPackMaxTiles = "data.pack_max_tiles";
inline constexpr std::string_view kMaxImagesPerSample = "data.max_images_per_sample";
inline constexpr std::string_view kImageMaxPixels = "data.image_max_pixels";
inline constexpr std::string_view kMaskImageSize = "data.mask_image_size";
inline constexpr std::string_view kAugment = "data.augment";
inline constexpr std::string_view kVideoFps = "data.video_fps";
inline constexpr std::string_view kVideoMaxFrames = "data.video_max_frames";
inline constexpr std::string_view kVideoLayout = "data.video_layout";
inline constexpr std::string_view kVolumeAs = "data.volume.as";
inline constexpr std::string_view kVolumeSize = "data.volume.size";
inline constexpr std::string_view kVolumeSpacing = "data.volume.spacing";
inline constexpr std::string_view kVolumeNormalization = "data.volume.normalization";
inline constexpr std::string_view kVolumePercentiles = "data.volume.percentiles";
inline constexpr std::string_view kVolumeWindow = "data.volume.window";
inline constexpr std::string_view kVolumeSeries = "data.volume.series";
inline constexpr std::string_view kVolumeMaxFrames = "data.volume.max_frames";
inline constexpr std::string_view kVolumeDtype = "data.volume.dtype";
inline constexpr std::string_view kVolumeSlices = "data.volume.slices";
inline constexpr std::string_view kVolumePlane = "data.volume.plane";
inline constexpr std::string_view kBoxesIn = "data.boxes.in";
inline constexpr std::string_view kBoxesPattern = "data.boxes.pattern";
inline constexpr std::string_view kBoxesOut = "data.boxes.out";
inline constexpr std::string_view kBoxesOrientation = "data.boxes.orientation";
inline constexpr std::string_view kOnBadSample = "data.on_bad_sample";
inline constexpr std::string_view kCheckAtStart = "data.check_at_start";
inline constexpr std::string_view kNumWorkers = "data.num_workers";
inline constexpr std::string_view kChatTemplate = "data.chat_template";
inline constexpr std::string_view kChatTemplateDate = "data.chat_template_date";
}  // namespace data

namespace training {
inline constexpr std::string_view kGlobalBatchSize = "training.global_batch_size";
inline constexpr std::string_view kMicroBatchSize = "training.micro_batch_size";
inline constexpr std::string_view kMaxSteps = "training.max_steps";
inline constexpr std::string_view kEpochs = "training.epochs";
inline constexpr std::string_view kLearningRate = "training.learning_rate";
inline constexpr std::string_view kVisionLearningRate = "training.vision_learning_rate";
inline constexpr std::string_view kProjectorLearningRate = "training.projector_learning_rate";
inline constexpr std::string_view kMaskLearningRate = "training.mask_learning_rate";
inline constexpr std::string_view kTextLossWeight = "training.text_loss_weight";
inline constexpr std::string_view kMaskBceWeight = "training.mask_bce_weight";
inline constexpr std::string_view kMaskDiceWeight = "training.mask_dice_weight";
inline constexpr std::string_view kOptimizer = "training.optimizer";
inline constexpr std::string_view kParameterGroups = "training.parameter_groups";
inline constexpr std::string_view kNoWeightDecay = "training.no_weight_decay";
inline constexpr std::string_view kMuonMomentum = "training.muon_momentum";
inline constexpr std::string_view kMuonNsSteps = "training.muon_ns_steps";
inline constexpr std::string_view kMuonAdjustLr = "training.muon_adjust_lr";
inline constexpr std::string_view kAdamBeta1 = "training.adam_beta1";
inline constexpr std::string_view kAdamBeta2 = "training.adam_beta2";
inline constexpr std::string_view kAdamEpsilon = "training.adam_epsilon";
inline constexpr std::string_view kWeightDecay = "training.weight_decay";
inline constexpr std::string_view kWarmupRatio = "training.warmup_ratio";
inline constexpr std::string_view kLrScheduler = "training.lr_scheduler";
inline constexpr std::string_view kMaxGradNorm = "training.max_grad_norm";
inline constexpr std::string_view kPrecision = "training.precision";
inline constexpr std::string_view kLossScale = "training.loss_scale";
inline constexpr std::string_view kLossScaleGrowthSteps = "training.loss_scale_growth_steps";
inline constexpr std::string_view kOptimizerStates = "training.optimizer_states";
inline constexpr std::string_view kCompressEmbeddingStates = "training.compress_embedding_states";
inline constexpr std::string_view kMasterWeights = "training.master_weights";
inline constexpr std::string_view kKernels = "training.kernels";
inline constexpr std::string_view kSeed = "training.seed";
inline constexpr std::string_view kGlobalBatchTokens = "training.global_batch_tokens";
inline constexpr std::string_view kBatchScaling = "training.batch_scaling";
inline constexpr std::string_view kReferenceBatchSize = "training.reference_batch_size";
inline constexpr std::string_view kTaskWeighting = "training.task_weighting";
inline constexpr std::string_view kTaskWeights = "training.task_weights";
inline constexpr std::string_view kGradnormAlpha = "training.gradnorm_alpha";
inline constexpr std::string_view kGradnormLearningRate = "training.gradnorm_learning_rate";
inline constexpr std::string_view kGradientConflicts = "training.gradient_conflicts";
inline constexpr std::string_view kResume = "training.resume";
inline constexpr std::string_view kScheduleFrom = "training.schedule_from";
inline constexpr std::string_view kEvalSteps = "training.eval_steps";
inline constexpr std::string_view kEvalSamples = "training.eval_samples";
inline constexpr std::string_view kEvalAnswers = "training.eval_answers";
inline constexpr std::string_view kEvalMaxNewTokens = "training.eval_max_new_tokens";
inline constexpr std::string_view kEvalBatchSize = "training.eval_batch_size";
inline constexpr std::string_view kBestMetric = "training.best_metric";
inline constexpr std::string_view kEarlyStoppingPatience = "training.early_stopping_patience";
}  // namespace training

namespace eval {
inline constexpr std::string_view kMetrics = "eval.metrics";
inline constexpr std::string_view kNumericTolerance = "eval.numeric_tolerance";
}  // namespace eval

namespace memory {
inline constexpr std::string_view kLimitGb = "memory.limit_gb";
inline constexpr std::string_view kMode = "memory.mode";
inline constexpr std::string_view kRecompute = "memory.recompute";
inline constexpr std::string_view kOffload = "memory.offload";
inline constexpr std::string_view kOffloadActivations = "memory.offload_activations";
inline constexpr std::string_view kPerLayerEmbeddings = "memory.per_layer_embeddings";
inline constexpr std::string_view kVisionTilesPerPass = "memory.vision_tiles_per_pass";
inline constexpr std::string_view kLossChunkRows = "memory.loss_chunk_rows";
inline constexpr std::string_view kExpandableSegments = "memory.expandable_segments";
inline constexpr std::string_view kAllowSplits = "memory.allow_splits";
inline constexpr std::string_view kLookAhead = "memory.look_ahead";
inline constexpr std::string_view kEmptyCacheAbove = "memory.empty_cache_above";
}  // namespace memory

namespace output {
inline constexpr std::string_view kDir = "output.dir";
inline constexpr std::string_view kDtype = "output.dtype";
inline constexpr std::string_view kSaveSteps = "output.save_steps";
inline constexpr std::string_view kSaveTotalLimit = "output.save_total_limit";
inline constexpr std::string_view kKeepBest = "output.keep_best";
inline constexpr std::string_view kAsyncSave = "output.async_save";
inline constexpr std::string_view kSamplePredictions = "output.sample_predictions";
inline constexpr std::string_view kSamplePredictionsShare = "output.sample_predictions_share";
inline constexpr std::string_view kReport = "output.report";
inline constexpr std::string_view kTensorboard = "output.tensorboard";
inline constexpr std::string_view kLogSamples = "output.log_samples";
}  // namespace output

namespace hub {
inline constexpr std::string_view kCommits = "hub.commits";
}  // namespace hub

namespace distributed {
inline constexpr std::string_view kSharding = "distributed.sharding";
inline constexpr std::string_view kRendezvousSeconds = "distributed.rendezvous_seconds";
}  // namespace distributed

}  // namespace vlmtrain::keys
