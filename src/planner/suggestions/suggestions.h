#pragma once

#include <optional>
#include <vector>

#include "planner/suggestions/change_evaluator.h"
#include "vlmtrain/planner/plan.h"

namespace vlmtrain::planner {

/// What would make a plan fit that does not: each is rehearsed, the least change first. `min_bytes`: what the plan
/// takes at least; `detail` is of those choices.
std::vector<Suggestion> make_suggestions(ChangeEvaluator& evaluator, int64_t min_bytes, const DryRunDetail& detail);

/// At the end of each, in words.
void append_required_bytes(std::vector<Suggestion>& suggestions);

/// The highest number of a limit with which the job fits, as far as a few rehearsals tell: it fits with that one.
/// Nothing if it does not fit with the lowest, or if that leaves out more samples than it keeps. `unlimited_bytes`:
/// what the job takes without the limit, which does not fit.
std::optional<Suggestion> suggest_lower_limit(const SampleLimit& limit, const Job& job,
                                              const StepConstraints& constraints, int64_t unlimited_bytes,
                                              ChangeEvaluator& evaluator);

}  // namespace vlmtrain::planner
