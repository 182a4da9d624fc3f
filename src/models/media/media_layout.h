#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "vlmtrain/data/sample/sample_shape.h"

namespace vlmtrain::models {

/// The tokens and rows of pixels of one medium.
struct MediaLayout {
  std::string text;                       ///< replaces its placeholder in the rendered chat
  int64_t pixel_rows = 1;                 ///< rows in pixel_values
  std::optional<int64_t> image_tokens{};  ///< nullopt: pixel_rows · TowerInputFormat::image_tokens
  std::optional<data::PatchGrid> grid{};  ///< for towers that process images at native resolution
  float time_step = 1;                    ///< difference of time positions between two frames of a video
  data::MediaKind kind = data::MediaKind::kImage;
  int64_t frames = 0;        ///< sampled frames of a video
  int64_t modality = 0;      ///< the family's id of a volume's modality; 0: unknown
  int64_t decode_bytes = 0;  ///< as data::Sample::decode_bytes
};

/// The rows of pixels that a family's tower takes.
struct TowerInputFormat {
  data::PixelRowShape row;
  int64_t image_tokens = 0;  ///< per row, unless MediaLayout::image_tokens is set
};

/// The pixel limits that media of too long samples may be shrunk to: multiples of `step` that are
/// at least `min_pixels`.
struct ShrinkRange {
  int64_t min_pixels = 0;  ///< of an image or video frame; `step` is in pixels, too
  int64_t step = 1;
};

/// Returns the range of images that are split into tiles of `side` by `side` pixels: whole tiles.
inline ShrinkRange make_tile_shrink_range(int64_t side) {
  return {.min_pixels = side * side, .step = side * side};
}

/// Maximum numbers of pixels of each image and of each video frame of a sample; nullopt: the limit
/// of the settings.
struct PixelLimits {
  std::optional<int64_t> image;
  std::optional<int64_t> frame;
};

}  // namespace vlmtrain::models
