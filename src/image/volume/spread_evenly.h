#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

namespace vlmtrain::image {

/// So many of the numbers 0 to `range` - 1, evenly from the first to the last: numpy's linspace, rounded.
inline std::vector<int64_t> space_evenly(int64_t range, int64_t count) {
  std::vector<int64_t> result;
  const double step = count > 1 ? static_cast<double>(range - 1) / static_cast<double>(count - 1) : 0;
  for (int64_t i = 0; i < count; ++i) {
    result.push_back(static_cast<int64_t>(std::nearbyint(step * static_cast<double>(i))));
  }
  return result;
}

}  // namespace vlmtrain::image
