#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "vlmtrain/data/sample/sample_shape.h"
#include "vlmtrain/image/points.h"
#include "vlmtrain/image/size.h"

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

/// The image as the vision tower gets it, before it is divided into tiles or patches, and the map
/// from pixels of the decoded image to its pixels: position · scale + offset.
struct ImageView {
  image::ImageSize size{};
  double scale_x = 1, scale_y = 1;
  double offset_x = 0, offset_y = 0;

  image::Point map(image::Point point) const {
    return {.x = point.x * scale_x + offset_x, .y = point.y * scale_y + offset_y};
  }
  /// Returns the position in the decoded image.
  image::Point invert(image::Point point) const {
    return {.x = (point.x - offset_x) / scale_x, .y = (point.y - offset_y) / scale_y};
  }
};

/// Returns the view of an image that is resized to `view_size`, whatever its aspect ratio.
inline ImageView make_resized_view(image::ImageSize image_size, image::ImageSize view_size) {
  return {.size = view_size,
          .scale_x = static_cast<double>(view_size.width) / static_cast<double>(image_size.width),
          .scale_y = static_cast<double>(view_size.height) / static_cast<double>(image_size.height)};
}

}  // namespace vlmtrain::models
