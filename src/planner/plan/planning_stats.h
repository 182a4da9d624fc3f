#pragma once

#include "vlmtrain/planner/plan.h"

namespace vlmtrain::planner {

/// Adds the time and dry runs of another plan that was made for the same answer.
inline void add_planning_stats(PlanningStats& stats, const PlanningStats& added) {
  stats.seconds += added.seconds;
  stats.num_dry_runs += added.num_dry_runs;
  stats.dry_run_seconds += added.dry_run_seconds;
}

}  // namespace vlmtrain::planner
