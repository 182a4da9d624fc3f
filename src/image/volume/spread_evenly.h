#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

namespace vlmtrain::image {

/// So many of the numbers 0 to `all` - 1, evenly from the first to the last: numpy's linspace, rounded.
inline std::vector<int64_t> spread_evenly(int64_t all, int64_t wanted) {
  std::vector<int64_t> result;
  const double step = wanted > 1 ? static_cast<double>(all - 1) / static_cast<double>(wanted - 1) : 0;
  for (int64_t i = 0; i < wanted; ++i) {
    result.push_back(static_cast<int64_t>(std::nearbyint(step * static_cast<double>(i))));
  }
  return result;
}

}  // namespace vlmtrain::image
