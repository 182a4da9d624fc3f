#include "models/qwen3_vl/processor.h"

#include <algorithm>
#include <utility>

#include "models/processing/frame_normalization.h"

namespace vlmtrain::models::qwen3_vl {

std::string video_text(const std::vector<std::string>& stamps, int64_t tokens_per_stamp) {
  std::string pads;
  for (int64_t i = 0; i < tokens_per_stamp; ++i) pads += qwen2_vl::kVideoPad;
  std::string text;
  for (const std::string& stamp : stamps) text += stamp + qwen2_vl::vision_block(pads);
  return text;
}

Processor::Processor(const Config& config, qwen2_vl::PixelSettings images, VideoSettings videos,
                     text::Tokenizer tokenizer, text::ChatTemplate chat_template, const ProcessorSettings& settings)
    : GridProcessor(config.vision, {config.image_token_id, config.video_token_id, config.text.vocab_size}, images,
                    std::move(tokenizer), std::move(chat_template), settings),
      vision_(config.vision),
      videos_(videos) {
  videos_.limits.max_frames = std::min(videos_.limits.max_frames, settings.video_max_frames);
  videos_.limits.most_listed = settings.video_max_frames;
}

std::vector<int64_t> Processor::frames_of(const image::VideoInfo& info) const {
  return videos_.frames_of(info, wanted_fps());
}

image::ImageSize Processor::frame_size(int64_t frames, image::ImageSize size, std::optional<int64_t> max_pixels) const {
  return videos_.frame_size(frames, size, max_pixels, vision_);
}

void Processor::check_video(const image::VideoInfo& info) const {
  check_frame_normalization(image_normalization(), videos_.pixels.normalization);
  if (!info.is_list) qwen2_vl::check_frame_limits(videos_.limits);
}

ImagePlan Processor::plan_video(const image::VideoInfo& info, std::optional<int64_t> max_pixels) const {
  const auto frames = frames_of(info);
  const data::PatchGrid grid = grid_of_video(info, max_pixels);
  const auto stamps = time_stamps(frames, fps_of(info), vision_.temporal_patch_size);
  return {.text = video_text(stamps, token_grid(grid, vision_).patches_per_frame()),
          .pixel_rows = grid.patches(),
          .image_tokens = token_grid(grid, vision_).patches(),
          .grid = grid,
          .kind = data::MediumKind::kVideo,
          .frames = std::ssize(frames)};
}

int64_t Processor::count_video_tokens(const image::VideoInfo& info, std::optional<int64_t> max_pixels) const {
  return std::ssize(tokenizer().encode(plan_video(info, max_pixels).text).ids);
}

std::vector<int64_t> Processor::position_ids(const EncodedChat& chat, std::span<const ImagePlan> images) const {
  std::vector<qwen2_vl::VisionSpan> spans;
  size_t first = 0;
  for (const ImagePlan& image : images) {
    const data::PatchGrid tokens = token_grid(*image.grid, vision_);
    // Text stands between the frames, so that each is a picture of its own.
    for (int64_t frame = 0; frame < tokens.frames; ++frame) {
      spans.push_back({chat.image_token_positions.at(first), {1, tokens.rows, tokens.columns}});
      first += static_cast<size_t>(tokens.patches_per_frame());
    }
  }
  return qwen2_vl::position_ids(std::ssize(chat.token_ids), spans, data::VideoLayout::kReleased);
}

}  // namespace vlmtrain::models::qwen3_vl
