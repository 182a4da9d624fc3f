#include "models/qwen2_vl/media_readers.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "models/media/frame_sampling.h"
#include "models/qwen2_vl/patch_writer.h"
#include "vlmtrain/models/media_preview.h"

namespace vlmtrain::models::qwen2_vl {

namespace {

/// Returns the range for images or frames whose processor has a minimum of `min_pixels` pixels.
ShrinkRange make_shrink_range(int64_t min_pixels, const VisionConfig& vision) {
  // 64 tokens of 28 x 28 pixels have 224 x 224 pixels, the input size of the first CLIP models.
  // Chosen without measurement (docs/data.md).
  constexpr int64_t kMinImageTokens = 64;
  const int64_t side = vision.pixels_per_token_side(), token_pixels = side * side;
  return {.min_pixels = std::max(kMinImageTokens, (min_pixels + token_pixels - 1) / token_pixels) * token_pixels,
          .step = token_pixels};
}

/// Returns previews of the first `frames` frames.
std::vector<MediaPreview> preview_frames(const at::Tensor& rows, const data::PatchGrid& grid, int64_t frames,
                                         const VisionConfig& vision) {
  std::vector<MediaPreview> previews;
  previews.reserve(static_cast<size_t>(frames));
  for (int64_t frame = 0; frame < frames; ++frame) {
    at::Tensor pixels = extract_frame(rows, grid, frame, vision);
    const int64_t height = pixels.size(1), width = pixels.size(2);
    previews.push_back({.pixels = std::move(pixels), .frame_index = frame, .tile_height = height, .tile_width = width});
  }
  return previews;
}

}  // namespace

std::string format_vision_block(std::string_view pad) {
  return fmt::format("{}{}{}", kVisionStart, pad, kVisionEnd);
}

MediaLayout make_media_layout(const data::PatchGrid& grid, std::string_view pad, const VisionConfig& vision) {
  const int64_t tokens = grid.patches() / vision.patches_per_token();
  std::string text;
  for (int64_t i = 0; i < tokens; ++i) text += pad;
  return {.text = std::move(text), .pixel_rows = grid.patches(), .image_tokens = tokens, .grid = grid};
}

FrameLimits apply_max_frames(FrameLimits limits, int64_t video_max_frames) {
  limits.max_frames = std::min(limits.max_frames, video_max_frames);
  limits.max_listed_frames = video_max_frames;
  return limits;
}

image::ImageSize GridImageReader::compute_size(image::ImageSize size, std::optional<int64_t> max_pixels) const {
  PixelSettings settings = settings_;
  settings.budget = limit_pixel_budget(settings.budget, max_pixels);
  return compute_resized_size(size, settings, vision_);
}

void GridImageReader::check_size(image::ImageSize size) const {
  smart_resize(size, vision_.pixels_per_token_side(), settings_.budget);
}

MediaLayout GridImageReader::lay_out(image::ImageSize size, std::optional<int64_t> max_pixels) const {
  return make_media_layout(compute_grid(1, compute_size(size, max_pixels), vision_), kImagePad, vision_);
}

ImageView GridImageReader::compute_view(image::ImageSize size, std::optional<int64_t> max_pixels) const {
  return make_resized_view(size, compute_size(size, max_pixels));
}

at::Tensor GridImageReader::preprocess(const at::Tensor& image, std::optional<int64_t> max_pixels) const {
  PatchWriter patches(1, compute_size({image.size(1), image.size(2)}, max_pixels), settings_.filter, vision_);
  patches.add(image);
  return patches.finish();
}

std::vector<MediaPreview> GridImageReader::preview(const at::Tensor& rows, const MediaLayout& layout,
                                                   image::ImageSize /*size*/,
                                                   std::optional<int64_t> /*max_pixels*/) const {
  // All frames of an image's patches are equal, so one of them is shown.
  return preview_frames(rows, *layout.grid, 1, vision_);
}

std::optional<ShrinkRange> GridImageReader::get_shrink_range() const {
  return make_shrink_range(settings_.budget.min_pixels, vision_);
}

std::optional<int64_t> GridImageReader::count_tokens(image::ImageSize size, std::optional<int64_t> max_pixels) const {
  return compute_grid(1, compute_size(size, max_pixels), vision_).patches() / vision_.patches_per_token();
}

void GridVideoReader::check(const image::VideoInfo& info) const {
  check_frame_normalization(settings_.image.normalization, settings_.frame.normalization);
  if (!info.is_frame_list) reject_fps_conflict(settings_.limits);
  smart_resize(info.size, vision_.pixels_per_token_side(), settings_.image.budget);
}

at::Tensor GridVideoReader::preprocess(image::VideoFile& video, std::optional<int64_t> max_pixels) const {
  const auto frames = select_frames(video.info());
  const auto count = std::ssize(frames);
  PatchWriter patches(count, compute_frame_size(count, video.info().size, max_pixels), settings_.frame.filter, vision_);
  video.read_frames(frames, [&](const at::Tensor& frame) { patches.add(frame); });
  return patches.finish();
}

std::vector<MediaPreview> GridVideoReader::preview(const at::Tensor& rows, const MediaLayout& layout) const {
  return preview_frames(rows, *layout.grid, layout.frames, vision_);
}

std::optional<ShrinkRange> GridVideoReader::get_shrink_range() const {
  return make_shrink_range(settings_.min_frame_pixels, vision_);
}

data::PatchGrid GridVideoReader::compute_video_grid(const image::VideoInfo& info,
                                                    std::optional<int64_t> max_pixels) const {
  const auto frames = std::ssize(select_frames(info));
  return compute_grid(frames, compute_frame_size(frames, info.size, max_pixels), vision_);
}

}  // namespace vlmtrain::models::qwen2_vl
