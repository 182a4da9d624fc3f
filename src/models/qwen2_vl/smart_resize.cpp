#include "models/qwen2_vl/smart_resize.h"

#include <algorithm>
#include <cmath>

#include "vlmtrain/base/error.h"

namespace vlmtrain::models::qwen2_vl {

namespace {

constexpr double kMaxRatio = 200;

}  // namespace

void check_ratio(image::ImageSize size) {
  const auto height = static_cast<double>(size.height), width = static_cast<double>(size.width);
  if (std::max(height, width) / std::min(height, width) > kMaxRatio) {
    throw data_error("{} x {} pixels: more than {} times as long as wide, which Qwen-VL does not take; crop it",
                     size.width, size.height, kMaxRatio);
  }
}

image::ImageSize smart_resize(image::ImageSize size, int64_t factor, PixelBudget budget) {
  check_ratio(size);
  const auto height = static_cast<double>(size.height), width = static_cast<double>(size.width);
  const auto unit = static_cast<double>(factor);
  const auto to_multiple = [factor](double multiples) { return static_cast<int64_t>(multiples) * factor; };
  // Python rounds halves to even, as nearbyint does.
  const image::ImageSize rounded{to_multiple(std::nearbyint(height / unit)), to_multiple(std::nearbyint(width / unit))};
  const int64_t pixels = rounded.height * rounded.width;
  if (pixels > budget.max_pixels) {
    const double shrink = std::sqrt(height * width / static_cast<double>(budget.max_pixels));
    return {std::max(factor, to_multiple(std::floor(height / shrink / unit))),
            std::max(factor, to_multiple(std::floor(width / shrink / unit)))};
  }
  if (pixels < budget.min_pixels) {
    const double grow = std::sqrt(static_cast<double>(budget.min_pixels) / (height * width));
    return {to_multiple(std::ceil(height * grow / unit)), to_multiple(std::ceil(width * grow / unit))};
  }
  return rounded;
}

}  // namespace vlmtrain::models::qwen2_vl
