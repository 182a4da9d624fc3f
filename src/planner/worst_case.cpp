#include "vlmtrain/planner/worst_case.h"

#include <algorithm>
#include <tuple>

#include "vlmtrain/base/error.h"

namespace vlmtrain::planner {

namespace {

template <class Size>
SampleBatch largest_by(std::vector<MeasuredSample>& samples, int64_t count, const Size& size) {
  const auto end = samples.begin() + std::min(count, std::ssize(samples));
  std::partial_sort(samples.begin(), end, samples.end(), [&](const MeasuredSample& left, const MeasuredSample& right) {
    return size(left.shape) > size(right.shape) || (size(left.shape) == size(right.shape) && left.id < right.id);
  });
  SampleBatch batch{.shapes = {}, .first_id = samples.front().id};
  for (auto sample = samples.begin(); sample != end; ++sample) batch.shapes.push_back(sample->shape);
  return batch;
}

}  // namespace

std::vector<SampleBatch> worst_batches(std::vector<MeasuredSample> samples, int64_t global_batch_size) {
  VLMTRAIN_CHECK(!samples.empty(), "no samples");
  std::vector<SampleBatch> batches;
  const auto add = [&](SampleBatch batch) {
    const bool known = std::any_of(batches.begin(), batches.end(),
                                   [&](const SampleBatch& other) { return other.shapes == batch.shapes; });
    if (!known) batches.push_back(std::move(batch));
  };
  add(largest_by(samples, global_batch_size, [](const data::SampleShape& shape) {
    return std::tuple(shape.tokens, shape.pixel_rows, shape.label_tokens);
  }));
  add(largest_by(samples, global_batch_size, [](const data::SampleShape& shape) {
    return std::tuple(shape.pixel_rows * shape.row.bytes(), shape.tokens, shape.label_tokens);
  }));
  add(largest_by(samples, global_batch_size, [](const data::SampleShape& shape) {
    return std::tuple(shape.label_tokens, shape.tokens, shape.pixel_rows);
  }));
  return batches;
}

}  // namespace vlmtrain::planner
