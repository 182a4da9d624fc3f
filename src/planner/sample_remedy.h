#pragma once

#include <optional>

#include "planner/suggestions/change_evaluator.h"

namespace vlmtrain::planner {

/// The highest number of a limit with which the job fits, as far as a few rehearsals tell: it fits with that one.
/// Nothing if it does not fit with the lowest, or if that leaves out more samples than it keeps. `unlimited_bytes`:
/// what the job takes without the limit, which does not fit.
std::optional<Suggestion> suggest_lower_limit(const SampleLimit& limit, const Job& job,
                                              const StepConstraints& constraints, int64_t unlimited_bytes,
                                              ChangeEvaluator& evaluator);

}  // namespace vlmtrain::planner
