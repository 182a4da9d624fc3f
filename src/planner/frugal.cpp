#include "planner/frugal.h"

#include <algorithm>

namespace vlmtrain::planner {

int64_t smallest_micro_batch(const FixedChoices& fixed) {
  return fixed.micro_batch_size.value_or(1);
}

std::vector<Choices> frugal_choices(const FixedChoices& fixed, const Workload& workload,
                                    const models::RecomputeBlocks& blocks) {
  Choices choices{.micro_batch_size = smallest_micro_batch(fixed),
                  .recompute = fixed.recompute.is_auto() ? blocks : fixed.recompute.blocks_of(blocks),
                  .vision_tiles_per_pass = fixed.vision_tiles_per_pass.value_or(0),
                  .loss_chunk_rows = fixed.loss_chunk_rows.value_or(1),
                  .expandable_segments = fixed.expandable_segments,
                  .copies_ahead = false};
  std::vector<Choices> list{choices};
  const bool has_tiles = std::any_of(workload.candidates.begin(), workload.candidates.end(),
                                     [](const SampleBatch& batch) { return batch.shapes.front().pixel_rows > 0; });
  if (has_tiles && !fixed.vision_tiles_per_pass) {
    choices.vision_tiles_per_pass = 1;
    list.push_back(choices);
  }
  return list;
}

std::optional<int64_t> least_reserved(RehearsedOptions& rehearsed, const Job& job, const Workload& workload,
                                      const std::vector<Choices>& frugal, int64_t limit_bytes, double hopeless_bytes) {
  std::optional<int64_t> least;
  for (const Choices& choices : frugal) {
    if (least && static_cast<double>(*least) > hopeless_bytes) break;
    const auto bytes = rehearsed.reserved_bytes(job, choices, workload.candidates);
    if (bytes && (!least || *bytes < *least)) least = bytes;
    if (least && *least <= limit_bytes) break;
  }
  return least;
}

}  // namespace vlmtrain::planner
