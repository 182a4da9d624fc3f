#pragma once

#include <cstdint>

namespace vlmtrain::image {

/// Where the pixels of a rotated picture come from, in whole numbers: sine and cosine are rounded, so that the last bit
/// of a machine's own counts for nothing.
class Rotation {
 public:
  /// A place is in units of 2^-kFraction pixels, the centre of the first pixel being 0.
  static constexpr int kFraction = 31;

  struct Place {
    int64_t y, x;
  };

  /// Counter-clockwise about the centre of a picture of this size.
  Rotation(double degrees, int64_t height, int64_t width);

  /// In the picture before, of the centre of a pixel of the rotated one.
  Place source_of(int64_t y, int64_t x) const {
    const int64_t down = 2 * y - last_row_, right = 2 * x - last_column_;  // from the centre, in half pixels
    return {.y = right * sine_ + down * cosine_ + last_row_ * kHalf,
            .x = right * cosine_ - down * sine_ + last_column_ * kHalf};
  }

 private:
  static constexpr int64_t kHalf = int64_t{1} << (kFraction - 1);

  int64_t last_row_, last_column_;
  int64_t sine_, cosine_;  ///< in units of 1 / kHalf
};

}  // namespace vlmtrain::image
