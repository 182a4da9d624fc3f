#include "train/without_effect.h"

#include <fmt/format.h>

#include <string_view>

namespace vlmtrain::train {

namespace {

/// Keys that have no effect for one reason.
struct Idle {
  bool is_idle = false;
  std::vector<std::string_view> keys{};
  std::string_view reason{};
};

std::vector<Idle> idle_settings(const Config& config, const data::MediaCensus& census, bool draws_masks) {
  const bool are_known = census.samples > 0;
  const auto& training = config.training;
  const auto& balance = training.balance;
  return {
      {are_known && census.with_images == 0,
       {"data.augment"},
       "no sample has an image, and videos and volumes stay as they are"},
      {are_known && census.with_videos == 0,
       {"data.video_fps", "data.video_max_frames", "data.video_layout"},
       "no sample has a video"},
      {are_known && census.with_volumes == 0,
       {"data.volume.as", "data.volume.size", "data.volume.spacing", "data.volume.normalization", "data.volume.window",
        "data.volume.dtype", "data.volume.percentiles", "data.volume.plane", "data.volume.series", "data.volume.slices",
        "data.volume.max_frames"},
       "no sample has a volume"},
      {census.is_blind(), {"data.image_max_pixels", "data.max_images_per_sample"}, "no sample has an image or video"},
      {!config.data.packing,
       {"data.pack_max_tokens", "data.pack_max_images", "data.pack_max_tiles"},
       "data.packing is false"},
      {!draws_masks,
       {"data.mask_image_size", "model.freeze_mask_encoder", "training.mask_learning_rate", "training.text_loss_weight",
        "training.mask_bce_weight", "training.mask_dice_weight"},
       "the model draws no masks"},
      {training.precision != engine::Precision::kFp16 || training.loss_scale.has_value(),
       {"training.loss_scale_growth_steps"},
       "it is for training.precision=fp16 with training.loss_scale=auto"},
      {training.max_steps.has_value(), {"training.epochs"}, "training.max_steps is a number"},
      {!config.evaluation.are_wanted(),
       {"training.eval_samples", "training.eval_answers", "training.eval_max_new_tokens", "training.eval_batch_size",
        "training.best_metric"},
       "training.eval_steps is 0, so there are no evaluations"},
      {!config.evaluation.are_wanted() && config.output.sample_predictions == 0,
       {"data.eval"},
       "training.eval_steps and output.sample_predictions are 0, so nothing reads it"},
      {balance.task_weighting != engine::TaskWeighting::kGradNorm,
       {"training.gradnorm_alpha", "training.gradnorm_learning_rate"},
       "training.task_weighting is not gradnorm"},
      {config.output.sample_predictions == 0, {"output.sample_predictions_share"}, "output.sample_predictions is 0"},
  };
}

}  // namespace

std::vector<std::string> settings_without_effect(const Config& config, const data::MediaCensus& census,
                                                 bool draws_masks) {
  Config own = config, usual;
  const OptionTable of_own = declare(own), of_usual = declare(usual);
  std::vector<std::string> remarks;
  for (const Idle& idle : idle_settings(config, census, draws_masks)) {
    if (!idle.is_idle) continue;
    for (const std::string_view key : idle.keys) {
      if (of_own.value_of(key) == of_usual.value_of(key)) continue;
      remarks.push_back(fmt::format("{}={} has no effect: {}", key, of_own.value_of(key), idle.reason));
    }
  }
  return remarks;
}

}  // namespace vlmtrain::train
