#include "image/transpose.h"

#include <array>
#include <cstring>
#include <utility>

namespace vlmtrain::image {
namespace {

constexpr int64_t kBlock = 16;
using Lane = uint8_t __attribute__((vector_size(kBlock)));
using Block = std::array<Lane, kBlock>;

Lane weave_low(Lane a, Lane b) {
  return __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
}

Lane weave_high(Lane a, Lane b) {
  return __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
}

/// Weaving each row with the one half a block below is a perfect shuffle; log2(16) of them swap the two indices.
Block shuffle(const Block& block) {
  Block result;
  for (int64_t i = 0; i < kBlock / 2; ++i) {
    result[2 * i] = weave_low(block[i], block[i + kBlock / 2]);
    result[2 * i + 1] = weave_high(block[i], block[i + kBlock / 2]);
  }
  return result;
}

void transpose_block(const uint8_t* in, int64_t in_stride, uint8_t* out, int64_t out_stride) {
  Block block;
  for (int64_t i = 0; i < kBlock; ++i) std::memcpy(&block[i], in + i * in_stride, kBlock);
  block = shuffle(shuffle(shuffle(shuffle(block))));
  for (int64_t i = 0; i < kBlock; ++i) std::memcpy(out + i * out_stride, &block[i], kBlock);
}

}  // namespace

void transpose_bytes(const uint8_t* in, int64_t in_stride, int64_t rows, int64_t columns, uint8_t* out,
                     int64_t out_stride) {
  const int64_t whole_rows = rows / kBlock * kBlock;
  const int64_t whole_columns = columns / kBlock * kBlock;
  for (int64_t y = 0; y < whole_rows; y += kBlock) {
    for (int64_t x = 0; x < whole_columns; x += kBlock) {
      transpose_block(in + y * in_stride + x, in_stride, out + x * out_stride + y, out_stride);
    }
  }
  for (int64_t y = 0; y < rows; ++y) {
    for (int64_t x = y < whole_rows ? whole_columns : 0; x < columns; ++x) {
      out[x * out_stride + y] = in[y * in_stride + x];
    }
  }
}

}  // namespace vlmtrain::image
