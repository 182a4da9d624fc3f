#pragma once

#include "vlmtrain/planner/cpu_plan.h"

namespace vlmtrain::planner {

/// Finds how the steps of a plan that fits are cut, each for its own samples, in micro-batches of at most as many as
/// are tried for the worst step: CpuPlan::cut, and what its steps take. Nothing to do where the micro-batch is fixed,
/// all samples are alike, or as many of the worst fit and steps are not made of packs.
void plan_cpu_split(const CpuPlanRequest& request, CpuPlan& plan);

}  // namespace vlmtrain::planner
