#include "vlmtrain/nn/segments.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

#include "vlmtrain/base/error.h"
#include "vlmtrain/memory/copy.h"

namespace vlmtrain::nn {

Segments Segments::from_lengths(std::vector<int64_t> lengths, at::Device device) {
  Segments segments;
  segments.lengths = std::move(lengths);
  at::Tensor offsets = at::empty({static_cast<int64_t>(segments.lengths.size()) + 1}, at::kInt);
  auto* offset = offsets.mutable_data_ptr<int32_t>();
  *offset = 0;
  for (const int64_t length : segments.lengths) {
    VLMTRAIN_CHECK(length > 0, "a segment of {} rows", length);
    segments.rows += length;
    segments.max_length = std::max(segments.max_length, length);
    *++offset = static_cast<int32_t>(segments.rows);
  }
  segments.offsets = memory::copy_to_device(offsets, device);
  return segments;
}

Segments Segments::uniform(int64_t count, int64_t length, at::Device device) {
  Segments segments;
  segments.lengths.assign(static_cast<size_t>(count), length);
  segments.offsets = at::arange(0, (count + 1) * length, length, at::TensorOptions(at::kInt).device(device));
  segments.max_length = length;
  segments.rows = count * length;
  return segments;
}

bool Segments::is_uniform() const {
  return std::all_of(lengths.begin(), lengths.end(), [this](int64_t length) { return length == max_length; });
}

Segments Segments::to(at::Device device) const {
  Segments result = *this;
  result.offsets = memory::copy_to_device(offsets, device);
  return result;
}

}  // namespace vlmtrain::nn
