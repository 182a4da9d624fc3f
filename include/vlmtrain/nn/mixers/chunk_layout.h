#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <vector>

#include "vlmtrain/nn/attention/attention.h"
#include "vlmtrain/nn/mixers/gated_delta_shape.h"

namespace vlmtrain::nn {

/// The segments of a packed stream, divided into chunks of kChunkRows rows. Every segment starts
/// with a chunk of its own; its last chunk is filled with padding.
///
/// Segments are sorted by descending number of chunks. Chunks are stored step by step: step i has
/// chunk i of every segment with more than i chunks, in this order. The segments of a step are
/// therefore a prefix of those of the step before, and the rows of a step are contiguous. All sizes
/// depend on the host's lengths only. Immutable.
struct ChunkLayout {
  std::vector<int64_t> chunks_per_step{};  ///< chunks of each step, descending
  int64_t num_chunks = 0;                  ///< of all steps
  int64_t num_history_rows = 0;            ///< rows of the stream that precede those of a chunk in `history_rows`

  // Tensors on the model's device. Padding refers to an arbitrary row of the stream.
  at::Tensor rows{};          ///< int64 [chunks · kChunkRows]: the row of the stream of each chunk row
  at::Tensor history_rows{};  ///< int64 [chunks · (num_history_rows + kChunkRows)]: `rows`, each chunk preceded by the
                              ///< rows before it; arbitrary rows in a segment's first chunk
  at::Tensor slots{};         ///< int64 [rows of the stream]: index into `rows`
  at::Tensor history_slots{};  ///< int64 [rows of the stream]: index into `history_rows`
  at::Tensor is_row{};         ///< fp32 [chunks, kChunkRows, 1]: 0 for padding, else 1
  at::Tensor segment_order{};  ///< int64 [segments]: position of each segment in the sorted order

  /// Returns the layout, with tensors on `device`. REQUIRES: 0 <= num_history_rows <= kChunkRows.
  static ChunkLayout make(const Segments& segments, int64_t num_history_rows, at::Device device);

  int64_t num_segments() const { return chunks_per_step.front(); }
};

}  // namespace vlmtrain::nn
