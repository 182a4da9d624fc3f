#include "models/qwen2_vl/processor.h"

#include <algorithm>

#include "models/qwen2_vl/positions.h"
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

Processor::Processor(Config config, PixelSettings images, VideoSettings videos, text::Tokenizer tokenizer,
                     text::ChatTemplate chat_template, const ProcessorSettings& settings)
    : ConversationProcessor(std::move(tokenizer), std::move(chat_template), settings,
                            {{.height = config.vision.temporal_patch_size * config.vision.patch_size,
                              .width = config.vision.patch_size}}),
      config_(std::move(config)),
      images_(std::move(images)),
      videos_(std::move(videos)),
      wanted_fps_(settings.video_fps) {
  videos_.max_frames = std::min(videos_.max_frames, settings.video_max_frames);
  check_vocabulary(this->tokenizer(), config_.text.vocab_size);
  check_token(this->tokenizer(), kImagePad, "image_token_id", config_.image_token_id);
  check_token(this->tokenizer(), kVideoPad, "video_token_id", config_.video_token_id);
}

ImagePlan Processor::plan(data::PatchGrid grid, std::string_view pad) const {
  const int64_t tokens = grid.patches() / config_.vision.patches_per_token();
  std::string text;
  for (int64_t i = 0; i < tokens; ++i) text += pad;
  return {.text = std::move(text), .pixel_rows = grid.patches(), .image_tokens = tokens, .grid = grid};
}

PixelSettings Processor::picture_settings(std::optional<int64_t> max_pixels) const {
  PixelSettings settings = images_;
  settings.budget = limited(settings.budget, max_pixels);
  return settings;
}

PixelSettings Processor::frame_settings(int64_t frames, std::optional<int64_t> max_pixels) const {
  PixelSettings settings = videos_.pixels_of(frames, config_.vision);
  settings.budget = limited(settings.budget, max_pixels);
  return settings;
}

ImagePlan Processor::plan(image::ImageSize size, std::optional<int64_t> max_pixels) const {
  return plan(grid_of(1, size, picture_settings(max_pixels), config_.vision), kImagePad);
}

at::Tensor Processor::pixels_of(const at::Tensor& image, std::optional<int64_t> max_pixels) const {
  PatchWriter patches(1, {image.size(1), image.size(2)}, picture_settings(max_pixels), config_.vision);
  patches.add(image);
  return patches.finish();
}

std::vector<SeenPicture> Processor::pictures_in(const at::Tensor& rows, const ImagePlan& medium,
                                                image::ImageSize /*size*/,
                                                std::optional<int64_t> /*max_pixels*/) const {
  // A picture stands for all frames of its patches.
  const int64_t count = std::max<int64_t>(medium.frames, 1);
  std::vector<SeenPicture> pictures;
  pictures.reserve(static_cast<size_t>(count));
  for (int64_t frame = 0; frame < count; ++frame) {
    at::Tensor pixels = frame_in(rows, *medium.grid, frame, config_.vision);
    const int64_t height = pixels.size(1), width = pixels.size(2);
    pictures.push_back({.pixels = std::move(pixels), .frame = frame, .tile_height = height, .tile_width = width});
  }
  return pictures;
}

void Processor::check_size(image::ImageSize size) const {
  smart_resize(size, config_.vision.pixels_per_token_side(), images_.budget);
}

int64_t Processor::count_tokens(image::ImageSize size, std::optional<int64_t> max_pixels) const {
  const data::PatchGrid grid = grid_of(1, size, picture_settings(max_pixels), config_.vision);
  return grid.patches() / config_.vision.patches_per_token();
}

std::optional<ShrinkRange> Processor::shrink_range(data::MediumKind kind) const {
  constexpr int64_t kLeastTokens = 64;  // 224 x 224 pixels where a token's square has 28 x 28
  const int64_t side = config_.vision.pixels_per_token_side(), square = side * side;
  const int64_t own = (kind == data::MediumKind::kVideo ? videos_.pixels : images_).budget.least;
  return ShrinkRange{.least = std::max(kLeastTokens, (own + square - 1) / square) * square, .step = square};
}

std::vector<int64_t> Processor::frames_of(const image::VideoInfo& info) const {
  return videos_.sample(info.frames, fps_of(info), wanted_fps_, config_.vision);
}

ImagePlan Processor::plan_video(const image::VideoInfo& info, std::optional<int64_t> max_pixels) const {
  const auto frames = std::ssize(frames_of(info));
  ImagePlan video = plan(grid_of(frames, info.size, frame_settings(frames, max_pixels), config_.vision), kVideoPad);
  video.frames = frames;
  if (config_.tokens_per_second) {
    const double sampled_fps = static_cast<double>(frames) / static_cast<double>(info.frames) * fps_of(info);
    const auto patch_seconds =
        static_cast<float>(static_cast<double>(config_.vision.temporal_patch_size) / sampled_fps);
    video.time_step = static_cast<float>(*config_.tokens_per_second) * patch_seconds;
  }
  return video;
}

int64_t Processor::count_video_tokens(const image::VideoInfo& info, std::optional<int64_t> max_pixels) const {
  const auto frames = std::ssize(frames_of(info));
  const data::PatchGrid grid = grid_of(frames, info.size, frame_settings(frames, max_pixels), config_.vision);
  return grid.patches() / config_.vision.patches_per_token();
}

at::Tensor Processor::pixels_of_video(image::VideoFile& video, std::optional<int64_t> max_pixels) const {
  const auto frames = frames_of(video.info());
  const auto count = std::ssize(frames);
  PatchWriter patches(count, video.info().size, frame_settings(count, max_pixels), config_.vision);
  video.read(frames, [&](const at::Tensor& frame) { patches.add(frame); });
  return patches.finish();
}

EncodedChat Processor::encode(const text::RenderedChat& chat, std::span<const ImagePlan> images) const {
  return encode_expanded(tokenizer(), chat, images, config_.image_token_id,
                         /*add_special_tokens=*/!chat_template().writes_start(), config_.video_token_id);
}

std::vector<int64_t> Processor::position_ids(const EncodedChat& chat, std::span<const ImagePlan> images) const {
  std::vector<VisionSpan> spans;
  size_t first = 0;
  for (const ImagePlan& image : images) {
    const int64_t merge = config_.vision.merge_size;
    const data::PatchGrid tokens{image.grid->frames, image.grid->rows / merge, image.grid->columns / merge};
    spans.push_back({chat.image_token_positions.at(first), tokens, image.time_step});
    first += static_cast<size_t>(tokens.patches());
  }
  return qwen2_vl::position_ids(std::ssize(chat.token_ids), spans);
}

}  // namespace vlmtrain::models::qwen2_vl
