#include "vlmtrain/image/points.h"

#include <cmath>
#include <numbers>

#include "image/codec/byte_source.h"
#include "image/codec/header.h"
#include "image/codec/orientation.h"

namespace vlmtrain::image {

Point augment_point(Point point, ImageSize size, const Augmentation& augmentation) {
  const auto width = static_cast<double>(size.width), height = static_cast<double>(size.height);
  if (augmentation.is_horizontally_flipped) point.x = width - point.x;
  if (augmentation.rotation_degrees == 0) return point;
  const double angle = augmentation.rotation_degrees * std::numbers::pi / 180;
  const double sine = std::sin(angle), cosine = std::cos(angle);
  const double dx = point.x - width / 2, dy = point.y - height / 2;
  return {.x = dx * cosine + dy * sine + width / 2, .y = dy * cosine - dx * sine + height / 2};
}

StoredImageMap::StoredImageMap(const io::MediaRef& image) {
  const ImageHeader header = read_header(image);
  stored_size_ = header.stored_size;
  orientation_ = static_cast<int>(header.orientation);
}

Point StoredImageMap::map(Point stored) const {
  const auto width = static_cast<double>(stored_size_.width), height = static_cast<double>(stored_size_.height);
  const auto [x, y] = stored;
  switch (static_cast<Orientation>(orientation_)) {
    case Orientation::kUpright:
      break;
    case Orientation::kFlipHorizontal:
      return {.x = width - x, .y = y};
    case Orientation::kRotate180:
      return {.x = width - x, .y = height - y};
    case Orientation::kFlipVertical:
      return {.x = x, .y = height - y};
    case Orientation::kTranspose:
      return {.x = y, .y = x};
    case Orientation::kRotate90Clockwise:
      return {.x = height - y, .y = x};
    case Orientation::kTransverse:
      return {.x = height - y, .y = width - x};
    case Orientation::kRotate90Counterclockwise:
      return {.x = y, .y = width - x};
  }
  return stored;
}

}  // namespace vlmtrain::image
