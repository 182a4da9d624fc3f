#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

namespace vlmtrain::image {

/// Of the three axes of a result, whose last lies side by side: how many values are copied, and the distance from one
/// to the next in source and result.
struct TurnedCopy {
  std::array<int64_t, 3> count;
  std::array<int64_t, 3> source_stride;
  std::array<int64_t, 3> target_stride;
};

/// target = change(source). In squares, so that neither side is walked through with large steps only.
template <class Value, class Change>
void copy_turned(const TurnedCopy& copy, const float* source, Value* target, const Change& change) {
  // The axis along which the source lies side by side, and the third one.
  const int near = copy.source_stride[0] < copy.source_stride[1] ? 0 : 1;
  const int far = 1 - near;
  constexpr int64_t kSide = 16;
  for (int64_t f = 0; f < copy.count[far]; ++f) {
    const float* const from = source + f * copy.source_stride[far];
    Value* const to = target + f * copy.target_stride[far];
    for (int64_t n_begin = 0; n_begin < copy.count[near]; n_begin += kSide) {
      const int64_t n_end = std::min(n_begin + kSide, copy.count[near]);
      for (int64_t begin = 0; begin < copy.count[2]; begin += kSide) {
        const int64_t end = std::min(begin + kSide, copy.count[2]);
        for (int64_t n = n_begin; n < n_end; ++n) {
          for (int64_t i = begin; i < end; ++i) {
            to[n * copy.target_stride[near] + i * copy.target_stride[2]] =
                change(from[n * copy.source_stride[near] + i * copy.source_stride[2]]);
          }
        }
      }
    }
  }
}

}  // namespace vlmtrain::image
