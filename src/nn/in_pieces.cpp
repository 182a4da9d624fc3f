#include "nn/in_pieces.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>

#include <algorithm>
#include <numeric>
#include <vector>

namespace vlmtrain::nn {

namespace {

/// Segments first to first + count, of which the rows begin at `first_row`.
Segments part_of(const Segments& segments, int64_t first, int64_t count, int64_t first_row) {
  Segments part;
  const auto begin = segments.lengths.begin() + first;
  part.lengths.assign(begin, begin + count);
  part.max_length = *std::ranges::max_element(part.lengths);
  part.rows = std::accumulate(part.lengths.begin(), part.lengths.end(), int64_t{0});
  part.offsets = segments.offsets.narrow(0, first, count + 1) - first_row;
  return part;
}

}  // namespace

at::Tensor attend_in_pieces(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                            const Segments& segments, int64_t most, const AttendSegments& attend) {
  const int64_t count = std::ssize(segments.lengths);
  if (count <= most) return attend(query, key, value, segments);
  std::vector<at::Tensor> outputs;
  int64_t row = 0;
  for (int64_t first = 0; first < count; first += most) {
    const Segments part = part_of(segments, first, std::min(most, count - first), row);
    const auto own = [&](const at::Tensor& rows) { return rows.narrow(0, row, part.rows); };
    outputs.push_back(attend(own(query), own(key), own(value), part));
    row += part.rows;
  }
  return at::cat(outputs);
}

}  // namespace vlmtrain::nn
