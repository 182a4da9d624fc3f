#include "planner/frugal.h"

#include <algorithm>

namespace vlmtrain::planner {

int64_t min_micro_batch_size(const StepConstraints& constraints) {
  return constraints.micro_batch_size.value_or(1);
}

std::vector<StepConfig> make_min_memory_configs(const StepConstraints& constraints, const Workload& workload,
                                                const models::RecomputeBlocks& blocks) {
  StepConfig step_config{
      .micro_batch_size = min_micro_batch_size(constraints),
      .recompute = constraints.recompute.is_auto() ? blocks : constraints.recompute.resolve_blocks(blocks),
      .vision_tiles_per_pass = constraints.vision_tiles_per_pass.value_or(0),
      .loss_chunk_rows = constraints.loss_chunk_rows.value_or(1),
      .expandable_segments = constraints.expandable_segments,
      .copies_ahead = false};
  std::vector<StepConfig> min_memory_configs{step_config};
  const bool has_tiles = std::any_of(workload.candidates.begin(), workload.candidates.end(),
                                     [](const SampleBatch& batch) { return batch.shapes.front().pixel_rows > 0; });
  if (has_tiles && !constraints.vision_tiles_per_pass) {
    step_config.vision_tiles_per_pass = 1;
    min_memory_configs.push_back(step_config);
  }
  return min_memory_configs;
}

std::optional<int64_t> find_min_reserved_bytes(PlanEvaluator& evaluator, const Job& job, const Workload& workload,
                                               const std::vector<StepConfig>& configs, int64_t limit_bytes,
                                               double give_up_bytes) {
  std::optional<int64_t> min_bytes;
  for (const StepConfig& step_config : configs) {
    if (min_bytes && static_cast<double>(*min_bytes) > give_up_bytes) break;
    const auto bytes = evaluator.reserved_bytes(job, step_config, workload.candidates);
    if (bytes && (!min_bytes || *bytes < *min_bytes)) min_bytes = bytes;
    if (min_bytes && *min_bytes <= limit_bytes) break;
  }
  return min_bytes;
}

}  // namespace vlmtrain::planner
