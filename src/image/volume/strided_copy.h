#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

namespace vlmtrain::image {

/// A copy between two memory layouts of three axes: the number of values and the strides, in
/// values, along each axis of the target, whose last axis is contiguous.
struct StridedCopy {
  std::array<int64_t, 3> count;
  std::array<int64_t, 3> source_stride;
  std::array<int64_t, 3> target_stride;
};

/// Writes transform(source) to target, in tiles, so that neither side is accessed with large
/// strides only.
template <class Value, class Transform>
void copy_strided(const StridedCopy& copy, const float* source, Value* target, const Transform& transform) {
  // The axis along which the source is contiguous, and the third one.
  const int inner = copy.source_stride[0] < copy.source_stride[1] ? 0 : 1;
  const int outer = 1 - inner;
  constexpr int64_t kTileSize = 16;  // floats of one cache line of 64 bytes
  for (int64_t outer_index = 0; outer_index < copy.count[outer]; ++outer_index) {
    const float* const source_row = source + outer_index * copy.source_stride[outer];
    Value* const target_row = target + outer_index * copy.target_stride[outer];
    for (int64_t inner_begin = 0; inner_begin < copy.count[inner]; inner_begin += kTileSize) {
      const int64_t inner_end = std::min(inner_begin + kTileSize, copy.count[inner]);
      for (int64_t begin = 0; begin < copy.count[2]; begin += kTileSize) {
        const int64_t end = std::min(begin + kTileSize, copy.count[2]);
        for (int64_t inner_index = inner_begin; inner_index < inner_end; ++inner_index) {
          for (int64_t i = begin; i < end; ++i) {
            target_row[inner_index * copy.target_stride[inner] + i * copy.target_stride[2]] =
                transform(source_row[inner_index * copy.source_stride[inner] + i * copy.source_stride[2]]);
          }
        }
      }
    }
  }
}

}  // namespace vlmtrain::image
