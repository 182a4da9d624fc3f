#pragma once

#include <optional>

#include "vlmtrain/planner/search.h"

namespace vlmtrain::planner {

/// The smallest card that is larger than the request's and holds its plan, rehearsed on that card.
std::optional<Suggestion> suggest_larger_gpu(const PlanRequest& request, const Plan& plan);

}  // namespace vlmtrain::planner
