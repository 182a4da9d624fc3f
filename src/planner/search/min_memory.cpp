#include "planner/search/min_memory.h"

#include <algorithm>

namespace vlmtrain::planner {

namespace {

/// Rows of the smaller loss chunks to try. Very small chunks launch many kernels, so that they are
/// the last resort. Not tuned.
constexpr int64_t kSmallLossChunkRows = 128;
constexpr int64_t kVerySmallLossChunkRows = 16;
/// Maximum number of vision passes to try. Dry runs with more passes take long. Not tuned.
constexpr int64_t kMaxVisionPasses = 8;

}  // namespace

std::vector<StepConfig> make_min_memory_configs(const StepConstraints& constraints, const Workload& workload,
                                                const models::RecomputeBlockCounts& blocks, int64_t loss_chunk_rows) {
  StepConfig step_config{
      .micro_batch_size = constraints.micro_batch_size.value_or(1),
      .recompute = constraints.recompute.is_auto() ? blocks : constraints.recompute.resolve_block_counts(blocks),
      .vision_tiles_per_pass = constraints.vision_tiles_per_pass.value_or(0),
      .loss_chunk_rows = constraints.loss_chunk_rows.value_or(loss_chunk_rows),
      .expandable_segments = constraints.expandable_segments,
      .copies_ahead = false};
  std::vector<StepConfig> min_memory_configs{step_config};
  const bool has_vision_tiles =
      std::any_of(workload.worst_batches.begin(), workload.worst_batches.end(),
                  [](const SampleBatch& batch) { return batch.shapes.front().pixel_rows > 0; });
  if (has_vision_tiles && !constraints.vision_tiles_per_pass) {
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
    const auto bytes = evaluator.measure_reserved_bytes(job, step_config, workload.worst_batches);
    if (bytes && (!min_bytes || *bytes < *min_bytes)) min_bytes = bytes;
    if (min_bytes && *min_bytes <= limit_bytes) break;
  }
  return min_bytes;
}

std::vector<StepConfig> list_smaller_pass_configs(const StepConfig& step_config, const StepConstraints& constraints,
                                                  int64_t tiles, const models::RecomputeBlockCounts& blocks,
                                                  int64_t min_loss_chunk_rows) {
  const auto make_config = [&](int64_t vision_passes, int64_t loss_chunk_rows) {
    StepConfig smaller_config = step_config;
    if (constraints.recompute.is_auto()) smaller_config.recompute = blocks;
    if (!constraints.vision_tiles_per_pass && vision_passes > 1)
      smaller_config.vision_tiles_per_pass = (tiles + vision_passes - 1) / vision_passes;
    if (!constraints.loss_chunk_rows) smaller_config.loss_chunk_rows = loss_chunk_rows;
    return smaller_config;
  };
  std::vector<StepConfig> step_configs{step_config};
  const int64_t max_vision_passes =
      constraints.vision_tiles_per_pass ? 1 : std::clamp<int64_t>(tiles, 1, kMaxVisionPasses);
  for (int64_t passes = 1; passes <= max_vision_passes; passes *= 2)
    step_configs.push_back(make_config(passes, kSmallLossChunkRows));
  step_configs.push_back(make_config(max_vision_passes, std::max(kVerySmallLossChunkRows, min_loss_chunk_rows)));
  return step_configs;
}

}  // namespace vlmtrain::planner
