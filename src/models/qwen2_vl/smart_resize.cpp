#include "models/qwen2_vl/smart_resize.h"

#include <algorithm>
#include <cmath>

#include "vlmtrain/base/error.h"

namespace vlmtrain::models::qwen2_vl {

namespace {

constexpr double kLongestRatio = 200;

}  // namespace

void check_ratio(image::ImageSize size) {
  const auto height = static_cast<double>(size.height), width = static_cast<double>(size.width);
  if (std::max(height, width) / std::min(height, width) > kLongestRatio) {
    throw data_error("{} x {} pixels: more than {} times as long as wide, which Qwen-VL does not take; crop it",
                     size.width, size.height, kLongestRatio);
  }
}

image::ImageSize smart_resize(image::ImageSize size, int64_t factor, PixelBudget budget) {
  check_ratio(size);
  const auto height = static_cast<double>(size.height), width = static_cast<double>(size.width);
  const auto unit = static_cast<double>(factor);
  const auto whole = [factor](double multiples) { return static_cast<int64_t>(multiples) * factor; };
  // Python rounds halves to even, as nearbyint does.
  const image::ImageSize nearest{whole(std::nearbyint(height / unit)), whole(std::nearbyint(width / unit))};
  const int64_t pixels = nearest.height * nearest.width;
  if (pixels > budget.most) {
    const double shrink = std::sqrt(height * width / static_cast<double>(budget.most));
    return {std::max(factor, whole(std::floor(height / shrink / unit))),
            std::max(factor, whole(std::floor(width / shrink / unit)))};
  }
  if (pixels < budget.least) {
    const double grow = std::sqrt(static_cast<double>(budget.least) / (height * width));
    return {whole(std::ceil(height * grow / unit)), whole(std::ceil(width * grow / unit))};
  }
  return nearest;
}

}  // namespace vlmtrain::models::qwen2_vl
