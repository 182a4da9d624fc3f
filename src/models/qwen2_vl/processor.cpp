#include "models/qwen2_vl/processor.h"

#include <algorithm>
#include <utility>

#include "models/processing/frame_normalization.h"

namespace vlmtrain::models::qwen2_vl {

Processor::Processor(const Config& config, PixelSettings images, VideoSettings videos, text::Tokenizer tokenizer,
                     text::ChatTemplate chat_template, const ProcessorSettings& settings)
    : GridProcessor(config.vision, {config.image_token_id, config.video_token_id, config.text.vocab_size}, images,
                    std::move(tokenizer), std::move(chat_template), settings),
      tokens_per_second_(config.tokens_per_second),
      videos_(videos),
      layout_(settings.video_layout) {
  videos_.limits.max_frames = std::min(videos_.limits.max_frames, settings.video_max_frames);
  videos_.limits.most_listed = settings.video_max_frames;
}

std::vector<int64_t> Processor::frames_of(const image::VideoInfo& info) const {
  return videos_.frames_of(info, wanted_fps(), vision());
}

image::ImageSize Processor::frame_size(int64_t frames, image::ImageSize size, std::optional<int64_t> max_pixels) const {
  PixelSettings settings = videos_.pixels_of(frames, vision());
  settings.budget = limited(settings.budget, max_pixels);
  return resized_size(size, settings, vision());
}

void Processor::check_video(const image::VideoInfo& info) const {
  check_frame_normalization(image_normalization(), videos_.pixels.normalization);
  if (!info.is_list) check_frame_limits(videos_.limits);
}

ImagePlan Processor::plan_video(const image::VideoInfo& info, std::optional<int64_t> max_pixels) const {
  const auto frames = std::ssize(frames_of(info));
  ImagePlan video = plan_of(grid_of_video(info, max_pixels), kVideoPad);
  video.frames = frames;
  if (tokens_per_second_) {
    const double sampled_fps = static_cast<double>(frames) / static_cast<double>(info.frames) * fps_of(info);
    const auto patch_seconds = static_cast<float>(static_cast<double>(vision().temporal_patch_size) / sampled_fps);
    video.time_step = static_cast<float>(*tokens_per_second_) * patch_seconds;
  }
  return video;
}

int64_t Processor::count_video_tokens(const image::VideoInfo& info, std::optional<int64_t> max_pixels) const {
  return grid_of_video(info, max_pixels).patches() / vision().patches_per_token();
}

std::vector<int64_t> Processor::position_ids(const EncodedChat& chat, std::span<const ImagePlan> images) const {
  std::vector<VisionSpan> spans;
  size_t first = 0;
  for (const ImagePlan& image : images) {
    const data::PatchGrid tokens = token_grid(*image.grid, vision());
    spans.push_back({chat.image_token_positions.at(first), tokens, image.time_step});
    first += static_cast<size_t>(tokens.patches());
  }
  return qwen2_vl::position_ids(std::ssize(chat.token_ids), spans, layout_);
}

}  // namespace vlmtrain::models::qwen2_vl
