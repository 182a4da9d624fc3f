#include "vlmtrain/planner/worst_case.h"

#include <algorithm>

#include "vlmtrain/base/error.h"
#include "vlmtrain/data/largest.h"

namespace vlmtrain::planner {

std::vector<SampleBatch> find_worst_batches(const data::SampleIndex& samples, int64_t global_batch_size) {
  VLMTRAIN_CHECK(samples.shapes.num_known() > 0, "no samples");
  std::vector<SampleBatch> batches;
  for (const auto& size : {data::token_sort_key, data::pixel_sort_key, data::label_sort_key, data::mask_sort_key}) {
    const auto largest = data::find_largest(samples.shapes, size, global_batch_size);
    if (size == data::mask_sort_key && samples.shapes.at(largest.front()).masks == 0) continue;
    SampleBatch batch{.shapes = {}, .first_sample_id = std::string(samples.ids[largest.front()])};
    for (const int64_t index : largest) batch.shapes.push_back(samples.shapes.at(index));
    const bool is_duplicate = std::ranges::find(batches, batch.shapes, &SampleBatch::shapes) != batches.end();
    if (!is_duplicate) batches.push_back(std::move(batch));
  }
  return batches;
}

}  // namespace vlmtrain::planner
