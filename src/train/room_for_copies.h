#pragma once

#include <cstdint>

#include "train/host_run.h"
#include "vlmtrain/memory/host.h"
#include "vlmtrain/planner/options.h"

namespace vlmtrain::train {

/// What this process can have of the host's memory for copies that live while steps are done, beside what these take:
/// of what is free now, less the margin of `mode`, and on the CPU less what the steps are planned to take more than
/// there is now; on the CPU no more than the plan leaves of its limit, and nothing without a plan. `host`: null on a
/// GPU. `ranks`: of the run on this machine.
memory::HostRoom room_for_copies(const HostRun* host, planner::Mode mode, int64_t ranks);

/// The same, of given figures: what the process has and can have in all, and what it is planned to have at most.
struct HostFigures {
  memory::HostRoom room{};
  int64_t own_bytes = 0;
  int64_t planned_bytes = 0;
  int64_t plan_leaves_bytes = 0;
  int64_t ranks = 1;
};
memory::HostRoom room_for_copies(const HostFigures& figures, double margin_percent);

}  // namespace vlmtrain::train
