#include "image/pixel_layout.h"

#include <array>
#include <cstring>
#include <utility>

namespace vlmtrain::image {

namespace {

constexpr int64_t kBlockSize = 16;  // bytes of an SSE or NEON register
using ByteVector = uint8_t __attribute__((vector_size(kBlockSize)));
using ByteBlock = std::array<ByteVector, kBlockSize>;

/// Returns the lower halves of two vectors, interleaved byte by byte.
ByteVector interleave_low(ByteVector first, ByteVector second) {
  return __builtin_shufflevector(first, second, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
}

/// Returns the upper halves of two vectors, interleaved byte by byte.
ByteVector interleave_high(ByteVector first, ByteVector second) {
  return __builtin_shufflevector(first, second, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
}

/// Interleaves each row of the upper half with the row half a block below. This is a perfect
/// shuffle of the 256 bytes; log2(16) = 4 perfect shuffles transpose the block.
ByteBlock perfect_shuffle_rows(const ByteBlock& block) {
  ByteBlock result;
  for (int64_t i = 0; i < kBlockSize / 2; ++i) {
    result[2 * i] = interleave_low(block[i], block[i + kBlockSize / 2]);
    result[2 * i + 1] = interleave_high(block[i], block[i + kBlockSize / 2]);
  }
  return result;
}

/// Transposes one block of kBlockSize rows and columns.
void transpose_block(const uint8_t* input, int64_t input_stride, uint8_t* output, int64_t output_stride) {
  ByteBlock block;
  for (int64_t i = 0; i < kBlockSize; ++i) std::memcpy(&block[i], input + i * input_stride, kBlockSize);
  block = perfect_shuffle_rows(perfect_shuffle_rows(perfect_shuffle_rows(perfect_shuffle_rows(block))));
  for (int64_t i = 0; i < kBlockSize; ++i) std::memcpy(output + i * output_stride, &block[i], kBlockSize);
}

}  // namespace

VLMTRAIN_VECTORIZED void deinterleave_channels(const uint8_t* __restrict rgb, int64_t num_pixels,
                                               const PlaneRowPointers& output) {
  uint8_t* __restrict red = output.red;
  uint8_t* __restrict green = output.green;
  uint8_t* __restrict blue = output.blue;
  for (int64_t i = 0; i < num_pixels; ++i) {
    red[i] = rgb[3 * i];
    green[i] = rgb[3 * i + 1];
    blue[i] = rgb[3 * i + 2];
  }
}

void transpose_bytes(const uint8_t* input, int64_t input_stride, int64_t rows, int64_t columns, uint8_t* output,
                     int64_t output_stride) {
  const int64_t num_blocked_rows = rows / kBlockSize * kBlockSize;
  const int64_t num_blocked_columns = columns / kBlockSize * kBlockSize;
  for (int64_t y = 0; y < num_blocked_rows; y += kBlockSize) {
    for (int64_t x = 0; x < num_blocked_columns; x += kBlockSize) {
      transpose_block(input + y * input_stride + x, input_stride, output + x * output_stride + y, output_stride);
    }
  }
  // The columns and rows beyond the last whole block.
  for (int64_t y = 0; y < rows; ++y) {
    for (int64_t x = y < num_blocked_rows ? num_blocked_columns : 0; x < columns; ++x) {
      output[x * output_stride + y] = input[y * input_stride + x];
    }
  }
}

}  // namespace vlmtrain::image
