#include "models/internvl/video_processor.h"

#include <ATen/ops/arange.h>

#include <algorithm>

#include "models/checkpoints/size_limits.h"
#include "models/processing/listed_frames.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::models::internvl {

VideoSettings VideoSettings::read(const std::filesystem::path& folder, const VisionConfig& vision,
                                  const ProcessorSettings& settings) {
  const auto file = PreprocessorConfig::find_for_videos(folder);
  if (!file) {
    throw data_error("{}: no settings for videos; copy the checkpoint's video_preprocessor_config.json there",
                     folder.string());
  }
  std::set<std::string_view> known_keys = get_tile_keys();
  known_keys.insert({// read here
                     "num_frames", "initial_shift", "video_processor_type",
                     // of images, where a checkpoint has no file for videos
                     "min_patches", "max_patches", "crop_to_patches", "image_processor_type", "feature_extractor_type",
                     // of no effect: frames are always sampled, data.video_fps of a second
                     "do_sample_frames", "fps", "return_metadata", "video_metadata"});
  file->require_only(known_keys);
  VideoSettings result{.tile = read_tile_settings(*file, vision),
                       .num_frames = std::nullopt,
                       .initial_shift = file->value("initial_shift", true),
                       .sampling_fps = settings.video_fps,
                       .max_frames = settings.video_max_frames};
  if (file->find("num_frames") != nullptr) {
    result.num_frames = file->value<int64_t>("num_frames", 0);
    models::check_size(*result.num_frames, "num_frames", image::kMaxVideoFrames, file->name());
  }
  return result;
}

std::vector<int64_t> VideoSettings::sample(const image::VideoInfo& video) const {
  if (auto all = list_all_frames(video, max_frames)) return *std::move(all);
  const double fps = video.fps > 0 ? video.fps : sampling_fps;
  const auto total = static_cast<double>(video.frames);
  // As transformers' int(): towards zero.
  const int64_t target_frames = video.is_frame_list ? max_frames
                                : num_frames        ? *num_frames
                                                    : static_cast<int64_t>(std::min(total, total / fps * sampling_fps));
  const int64_t count = std::clamp<int64_t>(target_frames, 1, std::min(max_frames, video.frames));
  const double interval = total / static_cast<double>(count);
  // The rounding is that of transformers' torch.arange.
  const at::Tensor indices = at::arange(initial_shift ? interval / 2 : 0.0, total, interval, at::kFloat)
                                 .to(at::kLong)
                                 .clamp_max_(video.frames - 1);
  return {indices.const_data_ptr<int64_t>(), indices.const_data_ptr<int64_t>() + indices.numel()};
}

}  // namespace vlmtrain::models::internvl
