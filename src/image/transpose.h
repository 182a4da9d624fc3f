#pragma once

#include <cstdint>

namespace vlmtrain::image {

/// Writes `in` [rows, columns], whose rows lie in_stride bytes apart, as `out` [columns, rows] with rows out_stride
/// apart.
void transpose_bytes(const uint8_t* in, int64_t in_stride, int64_t rows, int64_t columns, uint8_t* out,
                     int64_t out_stride);

}  // namespace vlmtrain::image
