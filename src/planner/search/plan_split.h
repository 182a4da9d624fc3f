#pragma once

#include "planner/search/cost_model.h"
#include "planner/search/plan_evaluator.h"
#include "vlmtrain/planner/cpu_plan.h"
#include "vlmtrain/planner/plan.h"

namespace vlmtrain::planner {

/// Computes Plan::split for a plan that fits.
///
/// If memory.recompute is `auto`, also chooses the recomputation: the one with the lowest predicted
/// time of the sampled steps. Tries that of plan.best_estimate, that of a single worst sample, all
/// blocks, and the midpoint of the latter two. Skips a recomputation if `cost_model` predicts it to
/// be slower even with one micro-batch per step. Plan::best_estimate becomes the estimate of the
/// worst step with the chosen recomputation.
///
/// Does nothing in these cases: the micro-batch size is set; all samples are alike; samples are not
/// packed, and the worst step fits in one micro-batch without recomputation.
void plan_split(Plan& plan, PlanEvaluator& evaluator, const CostModel& cost_model);

/// Computes CpuPlan::split for a plan that fits, and raises the plan's peaks if those of the split
/// are higher. A micro-batch has at most request.max_micro_batch_size samples. Does nothing in
/// these cases: the micro-batch size is set; all samples are alike; samples are not packed, and the
/// worst step has micro-batches of maximum size.
void plan_cpu_split(const CpuPlanRequest& request, CpuPlan& plan);

}  // namespace vlmtrain::planner
