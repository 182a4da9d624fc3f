#include "models/qwen2_vl/grid_processor.h"

#include <fmt/format.h>

#include <algorithm>

#include "vlmtrain/base/error.h"

namespace vlmtrain::models::qwen2_vl {

namespace {

void check_token(const text::Tokenizer& tokenizer, std::string_view token, std::string_view key, int64_t id) {
  const int64_t actual_id = find_token_id(tokenizer, token);
  if (actual_id != id) {
    throw data_error("config.json's {} is {}, but tokenizer.json gives {} the id {}", key, id, token, actual_id);
  }
}

}  // namespace

std::string format_vision_block(std::string_view pad) {
  return fmt::format("{}{}{}", kVisionStart, pad, kVisionEnd);
}

GridProcessor::GridProcessor(const VisionConfig& vision, const Tokens& tokens, PixelSettings images,
                             text::Tokenizer tokenizer, text::ChatTemplate chat_template,
                             const ProcessorSettings& settings)
    : ConversationProcessor(std::move(tokenizer), std::move(chat_template), settings,
                            {{.height = vision.temporal_patch_size * vision.patch_size, .width = vision.patch_size}}),
      vision_(vision),
      tokens_(tokens),
      images_(images),
      sampling_fps_(settings.video_fps) {
  check_vocabulary(this->tokenizer(), tokens.vocab_size);
  check_token(this->tokenizer(), kImagePad, "image_token_id", tokens.image);
  check_token(this->tokenizer(), kVideoPad, "video_token_id", tokens.video);
}

MediaLayout GridProcessor::make_layout(const data::PatchGrid& grid, std::string_view pad) const {
  const int64_t tokens = grid.patches() / vision_.patches_per_token();
  std::string text;
  for (int64_t i = 0; i < tokens; ++i) text += pad;
  return {.text = std::move(text), .pixel_rows = grid.patches(), .image_tokens = tokens, .grid = grid};
}

image::ImageSize GridProcessor::compute_image_size(image::ImageSize size, std::optional<int64_t> max_pixels) const {
  PixelSettings settings = images_;
  settings.budget = limit_budget(settings.budget, max_pixels);
  return compute_resized_size(size, settings, vision_);
}

MediaLayout GridProcessor::layout_image(image::ImageSize size, std::optional<int64_t> max_pixels) const {
  return make_layout(compute_grid(1, compute_image_size(size, max_pixels), vision_), kImagePad);
}

at::Tensor GridProcessor::preprocess_image(const at::Tensor& image, std::optional<int64_t> max_pixels) const {
  PatchWriter patches(1, compute_image_size({image.size(1), image.size(2)}, max_pixels), images_.filter, vision_);
  patches.add(image);
  return patches.finish();
}

std::vector<MediaPreview> GridProcessor::preview_images(const at::Tensor& rows, const MediaLayout& layout,
                                                        image::ImageSize /*size*/,
                                                        std::optional<int64_t> /*max_pixels*/) const {
  // A picture stands for all frames of its patches.
  const int64_t count = std::max<int64_t>(layout.frames, 1);
  std::vector<MediaPreview> previews;
  previews.reserve(static_cast<size_t>(count));
  for (int64_t frame = 0; frame < count; ++frame) {
    at::Tensor pixels = extract_frame(rows, *layout.grid, frame, vision_);
    const int64_t height = pixels.size(1), width = pixels.size(2);
    previews.push_back({.pixels = std::move(pixels), .frame_index = frame, .tile_height = height, .tile_width = width});
  }
  return previews;
}

void GridProcessor::check_size(image::ImageSize size) const {
  smart_resize(size, vision_.pixels_per_token_side(), images_.budget);
}

int64_t GridProcessor::count_tokens(image::ImageSize size, std::optional<int64_t> max_pixels) const {
  return compute_grid(1, compute_image_size(size, max_pixels), vision_).patches() / vision_.patches_per_token();
}

std::optional<ShrinkRange> GridProcessor::shrink_range(data::MediaKind kind) const {
  constexpr int64_t kMinTokens = 64;  // 224 x 224 pixels where a token's square has 28 x 28
  const int64_t side = vision_.pixels_per_token_side(), token_pixels = side * side;
  const int64_t min_pixels = kind == data::MediaKind::kVideo ? min_frame_pixels() : images_.budget.min_pixels;
  return ShrinkRange{.min_pixels = std::max(kMinTokens, (min_pixels + token_pixels - 1) / token_pixels) * token_pixels,
                     .step = token_pixels};
}

data::PatchGrid GridProcessor::compute_video_grid(const image::VideoInfo& info,
                                                  std::optional<int64_t> max_pixels) const {
  const auto frames = std::ssize(select_frames(info));
  return compute_grid(frames, frame_size(frames, info.size, max_pixels), vision_);
}

at::Tensor GridProcessor::preprocess_video(image::VideoFile& video, std::optional<int64_t> max_pixels) const {
  const auto frames = select_frames(video.info());
  const auto count = std::ssize(frames);
  PatchWriter patches(count, frame_size(count, video.info().size, max_pixels), frame_filter(), vision_);
  video.read(frames, [&](const at::Tensor& frame) { patches.add(frame); });
  return patches.finish();
}

EncodedChat GridProcessor::encode(const text::RenderedChat& chat, std::span<const MediaLayout> images) const {
  return encode_with_images(tokenizer(), chat, images, tokens_.image,
                            /*add_special_tokens=*/!chat_template().writes_bos(), tokens_.video);
}

}  // namespace vlmtrain::models::qwen2_vl
