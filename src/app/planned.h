#pragma once

#include <functional>

#include "app/plan_arguments.h"
#include "vlmtrain/planner/search.h"

namespace vlmtrain::app {

/// Hands what `vlmtrain plan` with these arguments asks of the planner to `callback`, while the files of its model and
/// of its data set are at hand. Throws UserError.
void make_plan_request(const PlanArguments& arguments,
                       const std::function<void(const planner::PlanRequest&)>& callback);

}  // namespace vlmtrain::app
