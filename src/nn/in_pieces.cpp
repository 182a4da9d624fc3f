#include "nn/in_pieces.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>

#include <algorithm>
#include <numeric>
#include <vector>

namespace vlmtrain::nn {

namespace {

/// Segments first to first + count, of which the rows begin at `first_row`.
Segments slice_segments(const Segments& segments, int64_t first, int64_t count, int64_t first_row) {
  Segments chunk;
  const auto begin = segments.lengths.begin() + first;
  chunk.lengths.assign(begin, begin + count);
  chunk.max_length = *std::ranges::max_element(chunk.lengths);
  chunk.rows = std::accumulate(chunk.lengths.begin(), chunk.lengths.end(), int64_t{0});
  chunk.offsets = segments.offsets.narrow(0, first, count + 1) - first_row;
  return chunk;
}

}  // namespace

at::Tensor attend_chunked(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                          const Segments& segments, int64_t max_segments, const SegmentAttention& attend) {
  const int64_t count = std::ssize(segments.lengths);
  if (count <= max_segments) return attend(query, key, value, segments);
  std::vector<at::Tensor> outputs;
  int64_t row = 0;
  for (int64_t first = 0; first < count; first += max_segments) {
    const Segments chunk = slice_segments(segments, first, std::min(max_segments, count - first), row);
    const auto slice = [&](const at::Tensor& rows) { return rows.narrow(0, row, chunk.rows); };
    outputs.push_back(attend(slice(query), slice(key), slice(value), chunk));
    row += chunk.rows;
  }
  return at::cat(outputs);
}

}  // namespace vlmtrain::nn
