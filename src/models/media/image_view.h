#pragma once

#include "vlmtrain/image/points.h"
#include "vlmtrain/image/size.h"

namespace vlmtrain::models {

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
