#pragma once

#include <cstdint>

namespace vlmtrain::nn {

/// Returns the smallest multiple of `multiple` that is at least `value`. Both are positive, or
/// `value` is 0.
constexpr int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace vlmtrain::nn
