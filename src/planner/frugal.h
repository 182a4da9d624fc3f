#pragma once

#include <optional>
#include <vector>

#include "planner/search/plan_evaluator.h"
#include "vlmtrain/planner/plan.h"

namespace vlmtrain::planner {

/// The choices of which one needs least: the smallest micro-batch, everything recomputed, one row of the loss at a
/// time; the tower's tiles one by one or all at once, for what its passes leave behind may be more than what they save.
/// What a person fixed is as it is. `blocks` are the model's.
std::vector<StepConfig> make_min_memory_configs(const StepConstraints& constraints, const Workload& workload,
                                                const models::RecomputeBlocks& blocks);

/// The least that these reserve of a job, as rehearsed: of the first that is within `limit_bytes`, or of all. Ends
/// early where what was found is above `give_up_bytes`: tiles one by one are many launches, so a rehearsal takes long.
/// Nothing if it is more than any card has.
std::optional<int64_t> find_min_reserved_bytes(PlanEvaluator& evaluator, const Job& job, const Workload& workload,
                                               const std::vector<StepConfig>& configs, int64_t limit_bytes,
                                               double give_up_bytes);

/// The smallest micro-batch that a person leaves the planner.
int64_t min_micro_batch_size(const StepConstraints& constraints);

}  // namespace vlmtrain::planner
