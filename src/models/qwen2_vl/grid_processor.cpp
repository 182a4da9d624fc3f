#include "models/qwen2_vl/grid_processor.h"

#include <fmt/format.h>

#include <algorithm>

#include "vlmtrain/base/error.h"

namespace vlmtrain::models::qwen2_vl {

namespace {

void check_token(const text::Tokenizer& tokenizer, std::string_view token, std::string_view key, int64_t id) {
  const int64_t found = id_of(tokenizer, token);
  if (found != id) {
    throw data_error("config.json's {} is {}, but tokenizer.json gives {} the id {}", key, id, token, found);
  }
}

}  // namespace

std::string vision_block(std::string_view pad) {
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
      wanted_fps_(settings.video_fps) {
  check_vocabulary(this->tokenizer(), tokens.vocabulary);
  check_token(this->tokenizer(), kImagePad, "image_token_id", tokens.image);
  check_token(this->tokenizer(), kVideoPad, "video_token_id", tokens.video);
}

ImagePlan GridProcessor::plan_of(const data::PatchGrid& grid, std::string_view pad) const {
  const int64_t tokens = grid.patches() / vision_.patches_per_token();
  std::string text;
  for (int64_t i = 0; i < tokens; ++i) text += pad;
  return {.text = std::move(text), .pixel_rows = grid.patches(), .image_tokens = tokens, .grid = grid};
}

image::ImageSize GridProcessor::picture_size(image::ImageSize size, std::optional<int64_t> max_pixels) const {
  PixelSettings settings = images_;
  settings.budget = limited(settings.budget, max_pixels);
  return resized_size(size, settings, vision_);
}

ImagePlan GridProcessor::plan(image::ImageSize size, std::optional<int64_t> max_pixels) const {
  return plan_of(grid_of(1, picture_size(size, max_pixels), vision_), kImagePad);
}

at::Tensor GridProcessor::pixels_of(const at::Tensor& image, std::optional<int64_t> max_pixels) const {
  PatchWriter patches(1, picture_size({image.size(1), image.size(2)}, max_pixels), images_.filter, vision_);
  patches.add(image);
  return patches.finish();
}

std::vector<SeenPicture> GridProcessor::pictures_in(const at::Tensor& rows, const ImagePlan& medium,
                                                    image::ImageSize /*size*/,
                                                    std::optional<int64_t> /*max_pixels*/) const {
  // A picture stands for all frames of its patches.
  const int64_t count = std::max<int64_t>(medium.frames, 1);
  std::vector<SeenPicture> pictures;
  pictures.reserve(static_cast<size_t>(count));
  for (int64_t frame = 0; frame < count; ++frame) {
    at::Tensor pixels = frame_in(rows, *medium.grid, frame, vision_);
    const int64_t height = pixels.size(1), width = pixels.size(2);
    pictures.push_back({.pixels = std::move(pixels), .frame = frame, .tile_height = height, .tile_width = width});
  }
  return pictures;
}

void GridProcessor::check_size(image::ImageSize size) const {
  smart_resize(size, vision_.pixels_per_token_side(), images_.budget);
}

int64_t GridProcessor::count_tokens(image::ImageSize size, std::optional<int64_t> max_pixels) const {
  return grid_of(1, picture_size(size, max_pixels), vision_).patches() / vision_.patches_per_token();
}

std::optional<ShrinkRange> GridProcessor::shrink_range(data::MediumKind kind) const {
  constexpr int64_t kLeastTokens = 64;  // 224 x 224 pixels where a token's square has 28 x 28
  const int64_t side = vision_.pixels_per_token_side(), square = side * side;
  const int64_t own = kind == data::MediumKind::kVideo ? least_frame_pixels() : images_.budget.least;
  return ShrinkRange{.least = std::max(kLeastTokens, (own + square - 1) / square) * square, .step = square};
}

data::PatchGrid GridProcessor::grid_of_video(const image::VideoInfo& info, std::optional<int64_t> max_pixels) const {
  const auto frames = std::ssize(frames_of(info));
  return grid_of(frames, frame_size(frames, info.size, max_pixels), vision_);
}

at::Tensor GridProcessor::pixels_of_video(image::VideoFile& video, std::optional<int64_t> max_pixels) const {
  const auto frames = frames_of(video.info());
  const auto count = std::ssize(frames);
  PatchWriter patches(count, frame_size(count, video.info().size, max_pixels), frame_filter(), vision_);
  video.read(frames, [&](const at::Tensor& frame) { patches.add(frame); });
  return patches.finish();
}

EncodedChat GridProcessor::encode(const text::RenderedChat& chat, std::span<const ImagePlan> images) const {
  return encode_expanded(tokenizer(), chat, images, tokens_.image,
                         /*add_special_tokens=*/!chat_template().writes_start(), tokens_.video);
}

}  // namespace vlmtrain::models::qwen2_vl
