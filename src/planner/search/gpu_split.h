#pragma once

#include "planner/search/cost_model.h"
#include "planner/search/plan_evaluator.h"
#include "vlmtrain/planner/plan.h"

namespace vlmtrain::planner {

/// Finds how the steps of a plan that fits are cut, each for its own samples: Plan::cut. Where recomputation is for the
/// planner, it is the one with which drawn steps are predicted to take least time, of: what the plan has, what a single
/// sample of the worst needs, everything, and the middle between these, but for those that `cost_model` finds slower
/// even if all of a step went in one pass; then Plan::chosen is the option with that for the worst step. Nothing to do
/// where the micro-batch is fixed, all samples are alike, or a step of the worst, which is no pack, goes in one pass
/// with nothing recomputed.
void plan_split(Plan& plan, PlanEvaluator& evaluator, const CostModel& cost_model);

}  // namespace vlmtrain::planner
