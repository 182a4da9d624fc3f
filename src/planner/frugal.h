#pragma once

#include <vector>

#include "vlmtrain/planner/plan.h"

namespace vlmtrain::planner {

/// The choices of which one needs least: the smallest micro-batch, everything recomputed, one row of the loss at a
/// time; the tower's tiles one by one or all at once, for what its passes leave behind may be more than what they save.
/// What a person fixed is as it is. `blocks` are the model's.
std::vector<Choices> frugal_choices(const FixedChoices& fixed, const Workload& workload,
                                    const models::RecomputeBlocks& blocks);

/// The smallest micro-batch that a person leaves the planner.
int64_t smallest_micro_batch(const FixedChoices& fixed);

}  // namespace vlmtrain::planner
