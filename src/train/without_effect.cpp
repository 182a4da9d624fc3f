#include "train/without_effect.h"

#include <fmt/format.h>

#include <string_view>

namespace vlmtrain::train {

namespace {

/// Keys that have no effect for one reason.
struct UnusedSettings {
  bool is_unused = false;
  std::vector<std::string_view> keys{};
  std::string_view reason{};
};

std::vector<UnusedSettings> list_unused_settings(const Config& config, const data::MediaCounts& census,
                                                 bool predicts_masks) {
  const bool has_census = census.samples > 0;
  const auto& training = config.training;
  const auto& balance = training.balance;
  return {
      {has_census && census.with_images == 0,
       {"data.augment"},
       "no sample has an image, and videos and volumes stay as they are"},
      {has_census && census.with_videos == 0,
       {"data.video_fps", "data.video_max_frames", "data.video_layout"},
       "no sample has a video"},
      {has_census && census.with_volumes == 0,
       {"data.volume.as", "data.volume.size", "data.volume.spacing", "data.volume.normalization", "data.volume.window",
        "data.volume.dtype", "data.volume.percentiles", "data.volume.plane", "data.volume.series", "data.volume.slices",
        "data.volume.max_frames"},
       "no sample has a volume"},
      {census.has_no_media(),
       {"data.image_max_pixels", "data.max_images_per_sample"},
       "no sample has an image or video"},
      {!config.data.packing,
       {"data.pack_max_tokens", "data.pack_max_images", "data.pack_max_tiles"},
       "data.packing is false"},
      {!predicts_masks,
       {"data.mask_image_size", "model.freeze_mask_encoder", "training.mask_learning_rate", "training.text_loss_weight",
        "training.mask_bce_weight", "training.mask_dice_weight"},
       "the model draws no masks"},
      {training.precision != engine::Precision::kFp16 || training.loss_scale.has_value(),
       {"training.loss_scale_growth_steps"},
       "it is for training.precision=fp16 with training.loss_scale=auto"},
      {training.max_steps.has_value(), {"training.epochs"}, "training.max_steps is a number"},
      {!config.evaluation.is_enabled(),
       {"training.eval_samples", "training.eval_answers", "training.eval_max_new_tokens", "training.eval_batch_size",
        "training.best_metric"},
       "training.eval_steps is 0, so there are no evaluations"},
      {!config.evaluation.is_enabled() && config.output.sample_predictions == 0,
       {"data.eval"},
       "training.eval_steps and output.sample_predictions are 0, so nothing reads it"},
      {balance.task_weighting != engine::TaskWeighting::kGradNorm,
       {"training.gradnorm_alpha", "training.gradnorm_learning_rate"},
       "training.task_weighting is not gradnorm"},
      {config.output.sample_predictions == 0, {"output.sample_predictions_share"}, "output.sample_predictions is 0"},
  };
}

}  // namespace

std::vector<std::string> find_unused_settings(const Config& config, const data::MediaCounts& census,
                                              bool predicts_masks) {
  Config current = config, defaults;
  const OptionTable current_table = declare(current), default_table = declare(defaults);
  std::vector<std::string> remarks;
  for (const UnusedSettings& unused : list_unused_settings(config, census, predicts_masks)) {
    if (!unused.is_unused) continue;
    for (const std::string_view key : unused.keys) {
      if (current_table.format_value(key) == default_table.format_value(key)) continue;
      remarks.push_back(fmt::format("{}={} has no effect: {}", key, current_table.format_value(key), unused.reason));
    }
  }
  return remarks;
}

}  // namespace vlmtrain::train
