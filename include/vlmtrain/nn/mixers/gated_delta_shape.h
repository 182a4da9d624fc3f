#pragma once

#include <cstdint>

namespace vlmtrain::nn {

/// Rows of a chunk of the delta rule, as in transformers and FLA. At most as many rows may precede a
/// row in the convolution.
inline constexpr int64_t kChunkRows = 64;

/// The sizes of a gated delta net.
struct GatedDeltaShape {
  int64_t key_heads = 0;    ///< query heads and key heads
  int64_t value_heads = 0;  ///< a multiple of key_heads
  int64_t key_dim = 0;      ///< features of a query or key head
  int64_t value_dim = 0;    ///< features of a value head
  int64_t kernel_size = 0;  ///< rows that the convolution reads, the row itself included

  int64_t num_channels() const { return 2 * key_heads * key_dim + value_heads * value_dim; }
  int64_t num_outputs() const { return value_heads * value_dim; }
  /// Rows before a row that the convolution reads.
  int64_t num_history_rows() const { return kernel_size - 1; }
};

}  // namespace vlmtrain::nn
