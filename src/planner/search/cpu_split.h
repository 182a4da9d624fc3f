#pragma once

#include "vlmtrain/planner/cpu_plan.h"

namespace vlmtrain::planner {

/// Computes CpuPlan::split and its statistics for a plan that fits. The samples of a micro-batch
/// are limited to the largest micro-batch tried for the worst step. Does nothing if the micro-batch
/// size is set, all samples are alike, or the worst step fits in one micro-batch and samples are
/// not packed.
void plan_cpu_split(const CpuPlanRequest& request, CpuPlan& plan);

}  // namespace vlmtrain::planner
