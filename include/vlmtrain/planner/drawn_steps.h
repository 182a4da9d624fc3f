#pragma once

#include <cstdint>
#include <vector>

#include "vlmtrain/planner/plan.h"

namespace vlmtrain::planner {

/// How many steps of so many samples a plan looks at: some dozens, fewer where they are large.
int64_t steps_to_draw(int64_t samples_of_step);

/// What one rank has of the workload's drawn steps. Empty without them.
std::vector<std::vector<data::SampleShape>> drawn_steps(const Workload& workload);

/// Of each of the workload's worst batches the step of one rank, the last sample standing for those that it lacks.
std::vector<std::vector<data::SampleShape>> worst_steps(const Workload& workload);

}  // namespace vlmtrain::planner
