#pragma once

#include <vector>

#include "planner/search/cost_model.h"
#include "planner/search/plan_evaluator.h"
#include "vlmtrain/planner/search.h"

namespace vlmtrain::planner {

/// What would make a plan that fits faster.
std::vector<Suggestion> suggest_faster(const Plan& plan, const CostModel& cost_model);

/// What would make a run fit that does not: each change is rehearsed, the smallest first.
std::vector<Suggestion> suggest_changes_that_fit(const PlanRequest& request, const Plan& plan,
                                                 PlanEvaluator& evaluator);

}  // namespace vlmtrain::planner
