#include "vlmtrain/train/checks.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "train/balance.h"
#include "train/checkpoint/resume.h"
#include "train/run/run_folder.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/file_names.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/data/data_set.h"
#include "vlmtrain/io/file.h"
#include "vlmtrain/models/checkpoint_info.h"
#include "vlmtrain/train/components.h"
#include "vlmtrain/train/planning.h"
#include "vlmtrain/train/run_checkpoint.h"

namespace vlmtrain::train {

void check_required_keys(const Config& config) {
  std::vector<std::string> missing_keys;
  if (config.model.path.empty())
    missing_keys.emplace_back(fmt::format("{}: the checkpoint to start from", keys::model::kPath));
  if (config.data.train.empty())
    missing_keys.emplace_back(fmt::format("{}: the file of conversations to train on", keys::data::kTrain));
  if (config.output.dir.empty())
    missing_keys.emplace_back(fmt::format("{}: the folder for the run's results", keys::output::kDir));
  if (!missing_keys.empty()) throw usage_error("the configuration lacks\n  {}", fmt::join(missing_keys, "\n  "));
}

void check_loss_scale(const engine::TrainingOptions& training) {
  if (!training.loss_scale || training.precision == engine::Precision::kFp16) return;
  throw usage_error("{}: has no effect with {}={}, which uses no loss scale; set it to auto, or set {} to fp16",
                    keys::training::kLossScale, keys::training::kPrecision, engine::to_string(training.precision),
                    keys::training::kPrecision);
}

void check_master_weights(const engine::TrainingOptions& training) {
  const auto master_weights = training.optimizer.master_weights.value_or(engine::MasterWeights::kFp32);
  if (master_weights == engine::MasterWeights::kFp32 || training.precision == engine::Precision::kBf16) return;
  throw usage_error("{}: {} is for bf16 weights, but {} is {}: {}; set {} to auto, or {} to bf16",
                    keys::training::kMasterWeights, engine::to_string(master_weights), keys::training::kPrecision,
                    engine::to_string(training.precision),
                    training.precision == engine::Precision::kFp32 ? "fp32 weights are their own masters"
                    : master_weights == engine::MasterWeights::kSplit
                        ? "an fp16 weight is not the upper half of an fp32 number, so its master cannot be split"
                        : "small updates of fp16 weights underflow",
                    keys::training::kMasterWeights, keys::training::kPrecision);
}

void check_learning_rates(const Config& config) {
  const auto check_part_learning_rate = [](const char* part_name, bool frozen, const AutoOr<double>& rate) {
    if (!frozen || !rate) return;
    throw usage_error(
        "training.{0}_learning_rate: is {1}, but model.freeze_{2}=true freezes that part of the model; leave "
        "training.{0}_learning_rate auto, or set model.freeze_{2} to false",
        part_name, *rate, std::string_view(part_name) == "vision" ? "vision_tower" : part_name);
  };
  check_part_learning_rate("vision", config.model.freeze_vision_tower, config.training.vision_learning_rate);
  check_part_learning_rate("projector", config.model.freeze_projector, config.training.projector_learning_rate);
}

namespace {

void check_mask_loss_weights(const Config& config) {
  const auto& [text, bce, dice] = config.training.mask_loss_weights;
  if (text > 0 || bce > 0 || dice > 0 || !models::predicts_masks(config.model.folder())) return;
  throw usage_error("{}: is 0, and so are {} and {}, so nothing would be learned; set one of them above 0",
                    keys::training::kTextLossWeight, keys::training::kMaskBceWeight, keys::training::kMaskDiceWeight);
}

}  // namespace

void check_evaluation_options(const Config& config) {
  const EvaluationOptions& evaluation = config.evaluation;
  if (evaluation.is_enabled() && config.data.eval.empty()) {
    throw usage_error("{}: is {}, but {} is empty; name the file to evaluate on, such as {}=held_out.json, or set {}=0",
                      keys::training::kEvalSteps, evaluation.steps ? std::to_string(*evaluation.steps) : "auto",
                      keys::data::kEval, keys::data::kEval, keys::training::kEvalSteps);
  }
  if (evaluation.early_stopping_patience > 0 && !evaluation.is_enabled()) {
    throw usage_error(
        "{}: is {}, but {} is 0, so no evaluation can stop the run; set {}, such as {}=100, or set the patience to 0",
        keys::training::kEarlyStoppingPatience, evaluation.early_stopping_patience, keys::training::kEvalSteps,
        keys::training::kEvalSteps, keys::training::kEvalSteps);
  }
  if (evaluation.best_metric.needs_answers() && !evaluation.generate_answers) {
    throw usage_error("{}: is {}, which needs answers, but {} is false; use {}=loss, or set {} to true",
                      keys::training::kBestMetric, to_string(evaluation.best_metric), keys::training::kEvalAnswers,
                      keys::training::kBestMetric, keys::training::kEvalAnswers);
  }
  if (evaluation.best_metric.kind() == BestMetric::kAnswerMetric &&
      std::ranges::count(evaluation.metrics.metrics, evaluation.best_metric.answer_metric()) == 0) {
    throw usage_error("{1}: is {0}, which {2} does not list; add {0} to {2}", to_string(evaluation.best_metric),
                      keys::training::kBestMetric, keys::eval::kMetrics);
  }
  if (evaluation.best_metric == BestMetric::kDice && !models::predicts_masks(config.model.folder())) {
    throw usage_error(
        "{}: is dice, which needs masks, but the model of {}={} predicts none; use {}=loss or exact_match",
        keys::training::kBestMetric, keys::model::kPath, config.model.path, keys::training::kBestMetric);
  }
}

void check_config(const Config& config) {
  check_required_keys(config);
  check_batch_scaling(config.training);
  check_loss_scale(config.training);
  check_master_weights(config.training);
  check_learning_rates(config);
  check_evaluation_options(config);
  check_mask_loss_weights(config);
  check_micro_batch_size(config);
}

namespace {

namespace fs = std::filesystem;

/// The files that a run writes into output.dir.
constexpr std::array kRunFileNames{"config.yaml",      "epochs.jsonl", "data_check.jsonl",  "environment.json",
                                   "eval_check.jsonl", "events.jsonl", "held_out.json",     "ledger.json",
                                   "metrics.jsonl",    "plan.json",    "predictions.jsonl", "report.html",
                                   "run.lock",         "samples.jsonl"};
/// The folders that a run writes in output.dir, and from which it removes old files.
constexpr std::array kRunFolderNames{"checkpoints", "tensorboard"};

/// Paths that a run reads, with the key that names them.
using RunInputPaths = std::vector<std::pair<std::string_view, fs::path>>;

/// Returns the inputs that exist.
RunInputPaths collect_input_paths(const Config& config) {
  RunInputPaths inputs{{keys::model::kPath, config.model.folder()},
                       {keys::model::kAdapter, config.model.adapter},
                       {keys::data::kEval, config.data.eval},
                       {keys::data::kImageRoot, config.data.image_root}};
  for (const auto& source : config.data.train.sources()) {
    inputs.emplace_back(keys::data::kTrain, source.path);
    if (!source.image_root.empty()) inputs.emplace_back(keys::data::kTrain, source.image_root);
  }
  std::error_code ignored_error;
  std::erase_if(inputs,
                [&](const auto& input) { return input.second.empty() || !fs::exists(input.second, ignored_error); });
  return inputs;
}

bool is_same_path(const fs::path& a, const fs::path& b) {
  std::error_code ignored_error;
  return fs::equivalent(a, b, ignored_error);
}

bool is_inside_folder(const fs::path& path, const fs::path& folder) {
  std::error_code ignored_error;
  const fs::path canonical_path = fs::weakly_canonical(path, ignored_error),
                 canonical_folder = fs::weakly_canonical(folder, ignored_error);
  return std::ranges::mismatch(canonical_folder, canonical_path).in1 == canonical_folder.end();
}

/// Throws UserError (kUsage) if `folder` has a file that a run would overwrite and that no run
/// wrote. Every run leaves run.lock next to its files.
void check_no_unrelated_files(const fs::path& folder) {
  std::error_code ignored_error;
  if (fs::exists(fs::symlink_status(folder / "run.lock", ignored_error))) return;
  for (const char* const name : kRunFileNames) {
    if (!fs::is_regular_file(folder / name, ignored_error)) continue;
    throw usage_error(
        "{}: {} contains {}, which a run would overwrite, and has no run.lock of an earlier run; choose another "
        "folder, or move the file away",
        keys::output::kDir, folder.string(), name);
  }
}

/// Returns whether the file has exactly the text that a run writes as config.yaml.
bool is_resolved_config_file(const fs::path& config_file) {
  Config config;
  OptionTable options = declare_options(config);
  options.read(config_file.string(), {});
  return options.to_yaml() == io::read_file(config_file);
}

}  // namespace

void check_output_files(const Config& config, const fs::path& config_file) {
  if (config.output.dir.empty()) return;
  const fs::path folder = get_run_folder(config);
  RunInputPaths inputs = collect_input_paths(config);
  const bool is_saved_config =
      is_same_path(config_file, folder / "config.yaml") && is_resolved_config_file(config_file);
  if (!is_saved_config) inputs.emplace_back("--config", config_file);
  const std::string advice = fmt::format("copy it elsewhere, or choose another {}", keys::output::kDir);
  for (const auto& [option, path] : inputs) {
    for (const char* const name : kRunFileNames) {
      if (!is_same_path(path, folder / name)) continue;
      throw usage_error("{}: {} is {}, a file that the run writes; {}", option, path.string(), (folder / name).string(),
                        advice);
    }
    for (const char* const name : kRunFolderNames) {
      if (!is_inside_folder(path, folder / name)) continue;
      throw usage_error("{}: {} is in {}, a folder that the run writes and clears; {}", option, path.string(),
                        (folder / name).string(), advice);
    }
  }
  if (!is_saved_config) check_no_unrelated_files(folder);
  for (const char* const name : kRunFileNames) {
    if (const auto kind = describe_non_regular_file(folder / name); !kind.empty()) {
      throw run_error("{}: is {}, but the run writes a file of that name; remove it", (folder / name).string(), kind);
    }
  }
}

void run_preflight_checks(const Config& config, const io::Records& records) {
  check_config(config);
  make_task_settings(config.training.batch_and_tasks, data::TaskTable(records));
  const auto checkpoint = find_newest_checkpoint(get_run_folder(config));
  if (checkpoint) load_resume_point(*checkpoint, config, make_run_fingerprint(config, records.size()));
  load_model(config, make_training_job(config), at::kMeta, checkpoint, /*load_weights=*/false);
}

namespace {

/// Keys that have no effect under a common condition.
struct UnusedSettingsRule {
  bool applies = false;  // whether the condition holds
  std::vector<std::string_view> keys{};
  std::string reason{};
};

/// Returns all rules. Conditions on media hold only if samples were counted.
std::vector<UnusedSettingsRule> list_unused_settings_rules(const Config& config,
                                                           const data::SampleCountsByMediaKind& media_counts,
                                                           const ModelTraits& model) {
  const bool has_media_counts = media_counts.samples > 0;
  const auto& training = config.training;
  const auto& batch_and_tasks = training.batch_and_tasks;
  return {
      {has_media_counts && media_counts.num_samples_with_images == 0,
       {keys::data::kAugment},
       "no sample has an image, and videos and volumes are not augmented"},
      {has_media_counts && media_counts.num_samples_with_videos == 0,
       {keys::data::kVideoFps, keys::data::kVideoMaxFrames, keys::data::kVideoLayout},
       "no sample has a video"},
      {has_media_counts && media_counts.num_samples_with_volumes == 0,
       {keys::data::kVolumeAs, keys::data::kVolumeSize, keys::data::kVolumeSpacing, keys::data::kVolumeNormalization,
        keys::data::kVolumeWindow, keys::data::kVolumeDtype, keys::data::kVolumePercentiles, keys::data::kVolumePlane,
        keys::data::kVolumeSeries, keys::data::kVolumeSlices, keys::data::kVolumeMaxFrames},
       "no sample has a volume"},
      {media_counts.is_text_only(),
       {keys::data::kImageMaxPixels, keys::data::kMaxImagesPerSample},
       "no sample has an image or video"},
      {!config.data.packing,
       {keys::data::kPackMaxTokens, keys::data::kPackMaxImages, keys::data::kPackMaxTiles},
       fmt::format("{} is false", keys::data::kPacking)},
      {!model.takes_media,
       {keys::model::kFreezeVisionTower, keys::model::kFreezeProjector, keys::training::kVisionLearningRate,
        keys::training::kProjectorLearningRate},
       "the model has no vision tower"},
      {!model.has_per_layer_embeddings,
       {keys::model::kFreezePerLayerEmbeddings, keys::memory::kPerLayerEmbeddings},
       "the model has no per-layer embeddings"},
      {!model.predicts_masks,
       {keys::data::kMaskImageSize, keys::model::kFreezeMaskEncoder, keys::training::kMaskLearningRate,
        keys::training::kTextLossWeight, keys::training::kMaskBceWeight, keys::training::kMaskDiceWeight},
       "the model predicts no masks"},
      {training.precision != engine::Precision::kFp16 || training.loss_scale.has_value(),
       {keys::training::kLossScaleGrowthSteps},
       fmt::format("it applies only to {}=fp16 with {}=auto", keys::training::kPrecision, keys::training::kLossScale)},
      {/*applies=*/true, engine::list_unused_rule_keys(training.optimizer),
       fmt::format("{} is {}", keys::training::kOptimizer, engine::get_optimizer_info(training.optimizer.kind).name)},
      {training.optimizer.state_dtype != engine::OptimizerStateDtype::k8Bit,
       {keys::training::kCompressEmbeddingStates},
       fmt::format("{} is not 8bit", keys::training::kOptimizerStates)},
      {training.max_steps.has_value(),
       {keys::training::kEpochs},
       fmt::format("{} is a number", keys::training::kMaxSteps)},
      {!config.evaluation.is_enabled(),
       {keys::training::kEvalSamples, keys::training::kEvalAnswers, keys::training::kEvalMaxNewTokens,
        keys::training::kEvalBatchSize, keys::training::kBestMetric, keys::output::kKeepBest, keys::eval::kMetrics,
        keys::eval::kNumericTolerance},
       fmt::format("{} is 0, so there are no evaluations", keys::training::kEvalSteps)},
      {config.evaluation.is_enabled() && !config.evaluation.generate_answers,
       {keys::eval::kMetrics, keys::eval::kNumericTolerance},
       fmt::format("{} is false, so there are no answers", keys::training::kEvalAnswers)},
      {!config.evaluation.is_enabled() && config.output.num_sample_predictions == 0,
       {keys::data::kEval},
       fmt::format("{} and {} are 0, so nothing reads it", keys::training::kEvalSteps,
                   keys::output::kSamplePredictions)},
      {batch_and_tasks.task_weighting != engine::TaskWeighting::kGradNorm,
       {keys::training::kGradnormAlpha, keys::training::kGradnormLearningRate},
       fmt::format("{} is not gradnorm", keys::training::kTaskWeighting)},
      {config.output.num_sample_predictions == 0,
       {keys::output::kSamplePredictionsShare},
       fmt::format("{} is 0", keys::output::kSamplePredictions)},
  };
}

}  // namespace

ModelTraits ModelTraits::read(const std::filesystem::path& folder) {
  return {.predicts_masks = models::predicts_masks(folder),
          .takes_media = models::takes_media(folder),
          .has_per_layer_embeddings = models::has_per_layer_embeddings(folder)};
}

std::vector<std::string> find_unused_settings(const Config& config, const data::SampleCountsByMediaKind& media_counts,
                                              const ModelTraits& model) {
  Config current = config, defaults;
  const OptionTable current_table = declare_options(current), default_table = declare_options(defaults);
  std::vector<std::string> remarks;
  for (const UnusedSettingsRule& rule : list_unused_settings_rules(config, media_counts, model)) {
    if (!rule.applies) continue;
    for (const std::string_view key : rule.keys) {
      if (current_table.format_value(key) == default_table.format_value(key)) continue;
      remarks.push_back(fmt::format("{}={} has no effect: {}", key, current_table.format_value(key), rule.reason));
    }
  }
  return remarks;
}

}  // namespace vlmtrain::train
