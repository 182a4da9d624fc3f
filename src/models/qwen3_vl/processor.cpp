#include "models/qwen3_vl/processor.h"

#include <algorithm>
#include <utility>

#include "models/processing/frame_normalization.h"

namespace vlmtrain::models::qwen3_vl {

std::string format_video_text(const std::vector<std::string>& timestamps, int64_t tokens_per_timestamp) {
  std::string pads;
  for (int64_t i = 0; i < tokens_per_timestamp; ++i) pads += qwen2_vl::kVideoPad;
  std::string text;
  for (const std::string& timestamp : timestamps) text += timestamp + qwen2_vl::format_vision_block(pads);
  return text;
}

Processor::Processor(const Config& config, qwen2_vl::PixelSettings images, VideoSettings videos,
                     text::Tokenizer tokenizer, text::ChatTemplate chat_template, const ProcessorSettings& settings)
    : GridProcessor(config.vision, {config.image_token_id, config.video_token_id, config.text.vocab_size}, images,
                    std::move(tokenizer), std::move(chat_template), settings),
      vision_(config.vision),
      videos_(videos) {
  videos_.limits.max_frames = std::min(videos_.limits.max_frames, settings.video_max_frames);
  videos_.limits.max_listed_frames = settings.video_max_frames;
}

std::vector<int64_t> Processor::select_frames(const image::VideoInfo& info) const {
  return videos_.select_frames(info, sampling_fps());
}

image::ImageSize Processor::frame_size(int64_t frames, image::ImageSize size, std::optional<int64_t> max_pixels) const {
  return videos_.frame_size(frames, size, max_pixels, vision_);
}

void Processor::check_video(const image::VideoInfo& info) const {
  check_frame_normalization(image_normalization(), videos_.pixels.normalization);
  if (!info.is_frame_list) qwen2_vl::check_frame_limits(videos_.limits);
}

MediaLayout Processor::layout_video(const image::VideoInfo& info, std::optional<int64_t> max_pixels) const {
  const auto frames = select_frames(info);
  const data::PatchGrid grid = compute_video_grid(info, max_pixels);
  const auto timestamps = make_timestamps(frames, get_fps(info), vision_.temporal_patch_size);
  return {.text = format_video_text(timestamps, compute_token_grid(grid, vision_).patches_per_frame()),
          .pixel_rows = grid.patches(),
          .image_tokens = compute_token_grid(grid, vision_).patches(),
          .grid = grid,
          .kind = data::MediaKind::kVideo,
          .frames = std::ssize(frames)};
}

int64_t Processor::count_video_tokens(const image::VideoInfo& info, std::optional<int64_t> max_pixels) const {
  return std::ssize(tokenizer().encode(layout_video(info, max_pixels).text).ids);
}

std::vector<int64_t> Processor::make_position_ids(const EncodedChat& chat, std::span<const MediaLayout> images) const {
  std::vector<qwen2_vl::VisionSpan> spans;
  size_t first = 0;
  for (const MediaLayout& image : images) {
    const data::PatchGrid tokens = compute_token_grid(*image.grid, vision_);
    // Text stands between the frames, so that each is a picture of its own.
    for (int64_t frame = 0; frame < tokens.frames; ++frame) {
      spans.push_back({chat.image_token_positions.at(first), {1, tokens.rows, tokens.columns}});
      first += static_cast<size_t>(tokens.patches_per_frame());
    }
  }
  return qwen2_vl::make_position_ids(std::ssize(chat.token_ids), spans, data::VideoLayout::kReleased);
}

}  // namespace vlmtrain::models::qwen3_vl
