#pragma once

#include <optional>
#include <vector>

#include "planner/search/plan_evaluator.h"
#include "vlmtrain/planner/plan.h"

namespace vlmtrain::planner {

/// Returns the one or two StepConfigs that may need the least memory within the constraints: the
/// smallest micro-batch, all blocks recomputed, `loss_chunk_rows` rows per loss chunk. If samples
/// have images, there are two: all tiles in one vision pass, and one tile per pass. Small passes may
/// increase fragmentation by more than they save. `blocks` is the number of blocks of the model.
std::vector<StepConfig> make_min_memory_configs(const StepConstraints& constraints, const Workload& workload,
                                                const models::RecomputeBlockCounts& blocks, int64_t loss_chunk_rows);

/// Dry-runs a job with the configs, in order, and returns the lowest reserved peak. Stops at the
/// first config within `limit_bytes`. Also stops if the lowest peak so far exceeds `give_up_bytes`,
/// since dry runs with single tiles launch many kernels and take long. Returns nullopt if all
/// exceed the memory of any GPU.
std::optional<int64_t> find_min_reserved_bytes(PlanEvaluator& evaluator, const Job& job, const Workload& workload,
                                               const std::vector<StepConfig>& configs, int64_t limit_bytes,
                                               double give_up_bytes);

/// Returns StepConfigs that need less and less memory at an increasing cost in time: `step_config`, the
/// smallest micro-batch with full recomputation, then more vision passes and smaller loss chunks. Values
/// that the constraints set do not change. `tiles` is the number of tiles of a micro-batch, and
/// `blocks` the number of blocks of the model.
std::vector<StepConfig> list_smaller_pass_configs(const StepConfig& step_config, const StepConstraints& constraints,
                                                  int64_t tiles, const models::RecomputeBlockCounts& blocks,
                                                  int64_t min_loss_chunk_rows);

}  // namespace vlmtrain::planner
