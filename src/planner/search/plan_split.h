#pragma once

#include <optional>

#include "planner/search/cost_model.h"
#include "planner/search/plan_evaluator.h"
#include "vlmtrain/planner/plan.h"

namespace vlmtrain::planner {

/// Computes Plan::split for a plan that fits.
///
/// If memory.recompute is `auto` and the backend predicts times, also chooses the recomputation: the
/// one with the lowest predicted time of the sampled steps. Tries that of plan.best_estimate, that
/// of a single worst sample, all blocks, and the midpoint of the latter two. Skips a recomputation if
/// `cost_model` predicts it to be slower even with one micro-batch per step. Plan::best_estimate
/// becomes the estimate of the worst step with the chosen recomputation. REQUIRES: `cost_model` is
/// set if the backend predicts times.
///
/// Does nothing in these cases: the micro-batch size is set; all samples are alike; samples are not
/// packed, and the worst step fits in micro-batches of maximum size without recomputation.
void plan_split(Plan& plan, PlanEvaluator& evaluator, const std::optional<CostModel>& cost_model);

}  // namespace vlmtrain::planner
