#pragma once

#include "vlmtrain/planner/job.h"
#include "vlmtrain/planner/options.h"

namespace vlmtrain::train {

/// Returns whether runs on the CPU offload, too: into ordinary memory, for tests. The environment variable
/// VLMTRAIN_OFFLOAD_ON_CPU sets it.
bool offloads_on_cpu();

/// Removes the settings of host memory from a job on the CPU. Warns about those that have no effect.
void disable_offload(const planner::MemoryOptions& options, planner::Job& job);

}  // namespace vlmtrain::train
