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
  videos_.limits.max_listed_frames = settings.video_max_frames;
}

std::vector<int64_t> Processor::select_frames(const image::VideoInfo& info) const {
  return videos_.select_frames(info, sampling_fps(), vision());
}

image::ImageSize Processor::frame_size(int64_t frames, image::ImageSize size, std::optional<int64_t> max_pixels) const {
  PixelSettings settings = videos_.compute_frame_settings(frames, vision());
  settings.budget = limit_budget(settings.budget, max_pixels);
  return compute_resized_size(size, settings, vision());
}

void Processor::check_video(const image::VideoInfo& info) const {
  check_frame_normalization(image_normalization(), videos_.pixels.normalization);
  if (!info.is_frame_list) check_frame_limits(videos_.limits);
}

MediaLayout Processor::layout_video(const image::VideoInfo& info, std::optional<int64_t> max_pixels) const {
  const auto frames = std::ssize(select_frames(info));
  MediaLayout video = make_layout(compute_video_grid(info, max_pixels), kVideoPad);
  video.frames = frames;
  if (tokens_per_second_) {
    const double sampled_fps = static_cast<double>(frames) / static_cast<double>(info.frames) * get_fps(info);
    const auto patch_seconds = static_cast<float>(static_cast<double>(vision().temporal_patch_size) / sampled_fps);
    video.time_step = static_cast<float>(*tokens_per_second_) * patch_seconds;
  }
  return video;
}

int64_t Processor::count_video_tokens(const image::VideoInfo& info, std::optional<int64_t> max_pixels) const {
  return compute_video_grid(info, max_pixels).patches() / vision().patches_per_token();
}

std::vector<int64_t> Processor::make_position_ids(const EncodedChat& chat, std::span<const MediaLayout> images) const {
  std::vector<VisionSpan> spans;
  size_t first = 0;
  for (const MediaLayout& image : images) {
    const data::PatchGrid tokens = compute_token_grid(*image.grid, vision());
    spans.push_back({chat.image_token_positions.at(first), tokens, image.time_step});
    first += static_cast<size_t>(tokens.patches());
  }
  return qwen2_vl::make_position_ids(std::ssize(chat.token_ids), spans, layout_);
}

}  // namespace vlmtrain::models::qwen2_vl
