#include "vlmtrain/data/sample/sample_shape.h"

#include <ATen/ops/empty.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/hash.h"
#include "vlmtrain/base/text_format.h"
#include "vlmtrain/data/sample/sample.h"

namespace vlmtrain::data {

namespace {

/// Returns "2 volumes of 96x96x96". Each frame of a series is a pixel row, so that there may be
/// more rows than volumes.
std::string describe_volumes(const SampleShape& shape) {
  std::string description = pluralize(shape.num_volumes, "volume");
  if (shape.row.depth == 0) return description;
  if (shape.pixel_rows != shape.num_volumes) description += fmt::format(" in {}", pluralize(shape.pixel_rows, "grid"));
  return description + fmt::format(" of {}x{}x{}", shape.row.depth, shape.row.height, shape.row.width);
}

/// Returns masks without values for the last tokens. Each of the first masks has its own image; the
/// others share the last image.
SegmentationMasks make_meta_masks(const SampleShape& shape) {
  VLMTRAIN_CHECK(shape.masks <= shape.label_tokens && shape.num_images_with_masks <= shape.masks,
                 "{} masks of {} label tokens", shape.masks, shape.label_tokens);
  SegmentationMasks masks;
  for (int64_t i = 0; i < shape.masks; ++i) {
    masks.token_positions.push_back(shape.tokens - shape.masks + i);
    masks.image_indices.push_back(std::min(i, shape.num_images_with_masks - 1));
  }
  const auto count = static_cast<size_t>(shape.masks);
  masks.valid_regions.assign(count, {.rows = shape.mask_image_size, .columns = shape.mask_image_size});
  masks.structure_names.resize(count);
  const auto uint8_tensor_options = at::TensorOptions(at::kByte).device(at::kMeta);
  masks.pixels =
      at::empty({shape.num_images_with_masks, 3, shape.mask_image_size, shape.mask_image_size}, uint8_tensor_options);
  masks.targets = at::empty({shape.masks, shape.mask_image_size, shape.mask_image_size}, uint8_tensor_options);
  return masks;
}

/// Returns a hash of the shape without its tokens and label tokens.
uint64_t hash_media_shape(const SampleShape& media) {
  ContentHash hash;
  const auto add = [&hash](int64_t value) { hash.add(static_cast<uint64_t>(value)); };
  for (const int64_t value : {media.image_tokens, media.num_media(), media.pixel_rows, media.row.height,
                              media.row.width, media.num_videos, media.video_frames, media.num_volumes, media.masks,
                              media.num_images_with_masks, media.mask_image_size, int64_t{media.has_label_weights}}) {
    add(value);
  }
  for (const PatchGrid& grid : media.patch_grids) {
    add(grid.frames);
    add(grid.rows);
    add(grid.columns);
  }
  return hash.value();
}

int32_t to_int32(int64_t tokens) {
  VLMTRAIN_CHECK(tokens >= 0 && tokens <= std::numeric_limits<int32_t>::max(), "{} tokens", tokens);
  return static_cast<int32_t>(tokens);
}

}  // namespace

PixelRowShape PixelRowShape::from_tensor(const at::Tensor& pixels) {
  const int64_t num_dims = pixels.dim();
  VLMTRAIN_CHECK(num_dims == 4 || num_dims == 5, "pixels of {} dimensions", num_dims);
  return {.dtype = pixels.scalar_type(),
          .channels = pixels.size(1),
          .depth = num_dims == 5 ? pixels.size(2) : 0,
          .height = pixels.size(-2),
          .width = pixels.size(-1)};
}

std::vector<int64_t> PixelRowShape::sizes(int64_t rows) const {
  if (depth == 0) return {rows, channels, height, width};
  return {rows, channels, depth, height, width};
}

int64_t PixelRowShape::bytes() const {
  const auto bytes_per_value = static_cast<int64_t>(c10::elementSize(dtype));
  return bytes_per_value * channels * std::max<int64_t>(depth, 1) * height * width;
}

nlohmann::json to_json_array(const ShrinkInfo& shrink_info) {
  return {shrink_info.tokens,       shrink_info.pixels,           shrink_info.tokens_after,
          shrink_info.pixels_after, shrink_info.image_max_pixels, shrink_info.frame_max_pixels};
}

ShrinkInfo parse_shrink_info(const nlohmann::json& numbers) {
  return {.tokens = numbers.at(0),
          .pixels = numbers.at(1),
          .tokens_after = numbers.at(2),
          .pixels_after = numbers.at(3),
          .image_max_pixels = numbers.at(4),
          .frame_max_pixels = numbers.at(5)};
}

SampleShape get_sample_shape(const Sample& sample) {
  SampleShape shape{.tokens = sample.tokens(),
                    .label_tokens = sample.label_tokens(),
                    .image_tokens = std::ssize(sample.image_token_positions),
                    .num_images = sample.num_images,
                    .num_videos = sample.num_videos,
                    .video_frames = sample.video_frames,
                    .num_volumes = sample.num_volumes,
                    .has_label_weights = !sample.label_weights.empty(),
                    .has_position_axes = !sample.position_ids.empty()};
  if (sample.pixel_values.defined()) {
    shape.pixel_rows = sample.pixel_values.size(0);
    shape.row = PixelRowShape::from_tensor(sample.pixel_values);
    shape.patch_grids = sample.patch_grids;
  }
  if (!sample.masks.empty()) {
    shape.masks = sample.masks.count();
    shape.num_images_with_masks = sample.masks.pixels.size(0);
    shape.mask_image_size = sample.masks.pixels.size(-1);
  }
  return shape;
}

std::string describe_media(const SampleShape& shape) {
  std::vector<std::string> kinds;
  if (shape.num_images > 0) kinds.push_back(pluralize(shape.num_images, "image"));
  if (shape.num_videos > 0) {
    kinds.push_back(
        fmt::format("{} of {}", pluralize(shape.num_videos, "video"), pluralize(shape.video_frames, "frame")));
  }
  if (shape.num_volumes > 0) kinds.push_back(describe_volumes(shape));
  if (shape.masks > 0) kinds.push_back(pluralize(shape.masks, "mask"));
  return kinds.empty() ? "no image" : fmt::format("{}", fmt::join(kinds, " and "));
}

SampleShape scale_pixels(SampleShape shape, double share) {
  if (shape.pixel_rows == 0) return shape;
  const auto scale = [share](int64_t count) {
    return std::max<int64_t>(std::llround(static_cast<double>(count) * share), 1);
  };
  const int64_t text_tokens = shape.tokens - shape.image_tokens;
  if (shape.patch_grids.empty()) {
    const int64_t tokens_per_row = shape.image_tokens / shape.pixel_rows;
    shape.pixel_rows = scale(shape.pixel_rows);
    shape.image_tokens = shape.pixel_rows * tokens_per_row;
  } else {
    const int64_t patches_per_token = shape.pixel_rows / shape.image_tokens;
    const int64_t patches_per_side = std::llround(std::sqrt(static_cast<double>(patches_per_token)));
    shape.pixel_rows = 0;
    for (PatchGrid& grid : shape.patch_grids) {
      grid.rows = scale(grid.rows / patches_per_side) * patches_per_side;
      shape.pixel_rows += grid.patches();
    }
    shape.image_tokens = shape.pixel_rows / patches_per_token;
  }
  shape.tokens = shape.image_tokens + text_tokens;
  return shape;
}

Sample make_meta_sample(const SampleShape& shape) {
  VLMTRAIN_CHECK(shape.image_tokens + shape.label_tokens <= shape.tokens && shape.label_tokens < shape.tokens,
                 "{} image tokens and {} label tokens in {} tokens", shape.image_tokens, shape.label_tokens,
                 shape.tokens);
  Sample sample;
  sample.token_ids.assign(static_cast<size_t>(shape.tokens), 0);
  sample.label_mask.assign(static_cast<size_t>(shape.tokens), 0);
  std::fill(sample.label_mask.end() - shape.label_tokens, sample.label_mask.end(), char{1});
  if (shape.has_label_weights) sample.label_weights.assign(sample.label_mask.begin(), sample.label_mask.end());
  sample.image_token_positions.resize(static_cast<size_t>(shape.image_tokens));
  std::iota(sample.image_token_positions.begin(), sample.image_token_positions.end(), int64_t{0});
  sample.num_images = shape.num_images;
  sample.num_videos = shape.num_videos;
  sample.video_frames = shape.video_frames;
  sample.num_volumes = shape.num_volumes;
  if (shape.num_volumes > 0) sample.modalities.assign(static_cast<size_t>(shape.pixel_rows), 0);
  sample.patch_grids = shape.patch_grids;
  if (shape.has_position_axes) sample.position_ids.assign(static_cast<size_t>(kNumPositionAxes * shape.tokens), 0);
  if (shape.pixel_rows > 0) {
    sample.pixel_values =
        at::empty(shape.row.sizes(shape.pixel_rows), at::TensorOptions(shape.row.dtype).device(at::kMeta));
  }
  if (shape.masks > 0) sample.masks = make_meta_masks(shape);
  return sample;
}

SampleShape SampleShapes::at(int64_t index) const {
  VLMTRAIN_CHECK(is_known(index), "the shape of sample {} is unknown", index);
  const ShapeEntry& entry = entries_[static_cast<size_t>(index)];
  SampleShape shape = media_shapes_[entry.media_shape_index];
  shape.tokens = entry.tokens;
  shape.label_tokens = entry.label_tokens;
  return shape;
}

std::optional<SampleShape> SampleShapes::operator[](int64_t index) const {
  return is_known(index) ? std::optional{at(index)} : std::nullopt;
}

const SampleShape* SampleShapes::find_media_shape(int64_t index) const {
  return is_known(index) ? &media_shapes_[entries_[static_cast<size_t>(index)].media_shape_index] : nullptr;
}

void SampleShapes::set(int64_t index, const SampleShape& shape) {
  ShapeEntry& entry = entries_.at(static_cast<size_t>(index));
  const bool was_known = entry.media_shape_index != kUnknown;
  entry = {.media_shape_index = intern_media_shape(shape),
           .tokens = to_int32(shape.tokens),
           .label_tokens = to_int32(shape.label_tokens)};
  num_known_shapes_ += was_known ? 0 : 1;
}

void SampleShapes::push_back(const std::optional<SampleShape>& shape) {
  entries_.emplace_back();
  if (shape) set(size() - 1, *shape);
}

void SampleShapes::mark_unknown(int64_t index) {
  ShapeEntry& entry = entries_.at(static_cast<size_t>(index));
  num_known_shapes_ -= entry.media_shape_index != kUnknown ? 1 : 0;
  entry = {};
}

uint32_t SampleShapes::intern_media_shape(SampleShape media) {
  media.tokens = media.label_tokens = 0;
  const uint64_t hash = hash_media_shape(media);
  const auto [first, end] = media_shape_indices_by_hash_.equal_range(hash);
  for (auto entry = first; entry != end; ++entry) {
    if (media_shapes_[entry->second] == media) return entry->second;
  }
  const auto media_shape_index = static_cast<uint32_t>(media_shapes_.size());
  media_shapes_.push_back(std::move(media));
  media_shape_indices_by_hash_.emplace(hash, media_shape_index);
  return media_shape_index;
}

bool SampleShapes::operator==(const SampleShapes& other) const {
  if (size() != other.size()) return false;
  for (int64_t index = 0; index < size(); ++index) {
    if ((*this)[index] != other[index]) return false;
  }
  return true;
}

bool SampleShapes::has_label_weights() const {
  return std::ranges::any_of(media_shapes_, &SampleShape::has_label_weights);
}

bool SampleShapes::has_videos() const {
  return std::ranges::any_of(media_shapes_, [](const SampleShape& media) { return media.num_videos > 0; });
}

}  // namespace vlmtrain::data
