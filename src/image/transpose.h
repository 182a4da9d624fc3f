#pragma once

#include <cstdint>

namespace vlmtrain::image {

/// Writes `input` [rows, columns], whose rows lie input_stride bytes apart, as `output` [columns, rows] with rows
/// output_stride apart.
void transpose_bytes(const uint8_t* input, int64_t input_stride, int64_t rows, int64_t columns, uint8_t* output,
                     int64_t output_stride);

}  // namespace vlmtrain::image
