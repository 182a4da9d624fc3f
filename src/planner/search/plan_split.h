#pragma once

#include "planner/search/cost_model.h"
#include "planner/search/plan_evaluator.h"
#include "vlmtrain/planner/cpu_plan.h"
#include "vlmtrain/planner/plan.h"

namespace vlmtrain::planner {

/// Computes Plan::split for a plan that fits. If recomputation is not constrained, also chooses it:
/// the one with the lowest predicted time of the sampled steps among the plan's, that of a single
/// worst sample, all blocks, and the middle between these. Recomputations that `cost_model`
/// predicts to be slower even with one micro-batch per step are skipped. Plan::best becomes the
/// worst step with that recomputation. Does nothing if the micro-batch size is set, all samples are
/// alike, or the worst step is not packed and needs neither several micro-batches nor
/// recomputation.
void plan_split(Plan& plan, PlanEvaluator& evaluator, const CostModel& cost_model);

/// Computes CpuPlan::split and its statistics for a plan that fits. The samples of a micro-batch
/// are limited to the largest micro-batch tried for the worst step. Does nothing if the micro-batch
/// size is set, all samples are alike, or the worst step fits in one micro-batch and samples are
/// not packed.
void plan_cpu_split(const CpuPlanRequest& request, CpuPlan& plan);

}  // namespace vlmtrain::planner
