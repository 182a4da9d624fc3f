#pragma once

#include <cstdint>

#include "train/host_run.h"
#include "vlmtrain/memory/host.h"
#include "vlmtrain/planner/options.h"

namespace vlmtrain::train {

/// What this process can have of the host's memory for copies that live while steps are done, beside what these take:
/// of what is free now, less the margin of `mode`, and on the CPU less what the steps are planned to take more than
/// there is now; on the CPU no more than the plan leaves of its limit, and nothing without a plan. `host_plan`: null on
/// a GPU. `ranks`: of the run on this machine.
memory::AvailableHostMemory compute_async_save_budget(const HostRunPlan* host_plan, planner::MemoryMode mode,
                                                      int64_t ranks);

/// The same, of given figures: what the process has and can have in all, and what it is planned to have at most.
struct AsyncSaveInputs {
  memory::AvailableHostMemory available{};
  int64_t process_bytes = 0;
  int64_t planned_bytes = 0;
  int64_t plan_remaining_bytes = 0;
  int64_t ranks = 1;
};
memory::AvailableHostMemory compute_async_save_budget(const AsyncSaveInputs& inputs, double margin_percent);

}  // namespace vlmtrain::train
