#include "vlmtrain/planner/worst_case.h"

#include <algorithm>

#include "vlmtrain/base/error.h"
#include "vlmtrain/data/largest.h"

namespace vlmtrain::planner {

std::vector<SampleBatch> worst_batches(const data::Outlines& samples, int64_t global_batch_size) {
  VLMTRAIN_CHECK(samples.shapes.known() > 0, "no samples");
  std::vector<SampleBatch> batches;
  for (const auto& size : {data::by_tokens, data::by_pixels, data::by_label_tokens, data::by_masks}) {
    const auto largest = data::largest_by(samples.shapes, size, global_batch_size);
    if (size == data::by_masks && samples.shapes.at(largest.front()).masks == 0) continue;
    SampleBatch batch{.shapes = {}, .first_id = std::string(samples.ids[largest.front()])};
    for (const int64_t index : largest) batch.shapes.push_back(samples.shapes.at(index));
    const bool is_known = std::ranges::find(batches, batch.shapes, &SampleBatch::shapes) != batches.end();
    if (!is_known) batches.push_back(std::move(batch));
  }
  return batches;
}

}  // namespace vlmtrain::planner
