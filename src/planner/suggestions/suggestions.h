#pragma once

#include <vector>

#include "planner/suggestions/change_evaluator.h"
#include "vlmtrain/planner/plan.h"

namespace vlmtrain::planner {

/// What would make a plan fit that does not: each is rehearsed, the least change first. `min_bytes`: what the plan
/// takes at least; `detail` is of those choices.
std::vector<Suggestion> make_suggestions(ChangeEvaluator& evaluator, int64_t min_bytes, const DryRunDetail& detail);

/// At the end of each, in words.
void append_required_bytes(std::vector<Suggestion>& suggestions);

}  // namespace vlmtrain::planner
