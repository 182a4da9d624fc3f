#pragma once

#include <cstdint>

namespace vlmtrain::image {

/// Where the pixels of a rotated picture come from, in whole numbers: sine and cosine are rounded, so that the last bit
/// of a machine's own counts for nothing.
class Rotation {
 public:
  /// A place is in units of 2^-kFraction pixels, the centre of the first pixel being 0.
  static constexpr int kFractionBits = 31;

  struct Position {
    int64_t y, x;
  };

  /// Counter-clockwise about the centre of a picture of this size.
  Rotation(double degrees, int64_t height, int64_t width);

  /// In the picture before, of the centre of a pixel of the rotated one.
  Position map_to_source(int64_t y, int64_t x) const {
    const int64_t dy = 2 * y - last_row_, dx = 2 * x - last_column_;  // from the centre, in half pixels
    return {.y = dx * sine_ + dy * cosine_ + last_row_ * kHalfPixel,
            .x = dx * cosine_ - dy * sine_ + last_column_ * kHalfPixel};
  }

 private:
  static constexpr int64_t kHalfPixel = int64_t{1} << (kFractionBits - 1);

  int64_t last_row_, last_column_;
  int64_t sine_, cosine_;  ///< in units of 1 / kHalfPixel
};

}  // namespace vlmtrain::image
