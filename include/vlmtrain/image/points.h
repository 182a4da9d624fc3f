#pragma once

#include "vlmtrain/image/image_file.h"
#include "vlmtrain/image/pixel_transforms.h"
#include "vlmtrain/image/size.h"

namespace vlmtrain::image {

/// A position in an image, in pixels. The origin is the upper left corner of the image, so that the
/// center of the first pixel is (0.5, 0.5).
struct Point {
  double x;
  double y;

  bool operator==(const Point&) const = default;
};

/// An axis-parallel rectangle in an image; a point if both corners are equal.
struct Box {
  Point top_left;
  Point bottom_right;

  bool is_point() const { return top_left == bottom_right; }
};

/// Returns the position in the result of augment_image() of a position in an image of `size`. It may
/// be outside of the image.
Point augment_point(Point point, ImageSize size, const Augmentation& augmentation);

/// A map from positions in an image as stored in its file to positions in the image as
/// decode_image() returns it, after its EXIF orientation is applied.
class StoredImageMap {
 public:
  /// Reads the header of the file. Throws as read_image_size().
  explicit StoredImageMap(const io::MediaRef& image);

  ImageSize stored_size() const { return stored_size_; }
  Point map(Point stored) const;

 private:
  ImageSize stored_size_{};
  int orientation_ = 1;  // value of EXIF's Orientation tag, 1 to 8
};

}  // namespace vlmtrain::image
