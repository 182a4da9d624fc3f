#include "image/rotation.h"

#include <cmath>
#include <numbers>

namespace vlmtrain::image {

Rotation::Rotation(double degrees, int64_t height, int64_t width) : last_row_(height - 1), last_column_(width - 1) {
  const double angle = degrees * std::numbers::pi / 180;
  sine_ = std::llround(std::sin(angle) * static_cast<double>(kHalfPixel));
  cosine_ = std::llround(std::cos(angle) * static_cast<double>(kHalfPixel));
}

}  // namespace vlmtrain::image
