#pragma once

#include <optional>
#include <vector>

#include "planner/suggestions/change_evaluator.h"
#include "vlmtrain/planner/plan.h"

namespace vlmtrain::planner {

/// Returns changes with which a plan fits that does not fit otherwise, verified by dry runs, the
/// smallest change first. `min_bytes` is the plan's least memory in the bytes of
/// ChangeEvaluator::limit_bytes(), and `detail` is the detail of that dry run.
std::vector<Suggestion> make_suggestions(ChangeEvaluator& evaluator, int64_t min_bytes, const DryRunDetail& detail);

/// Appends "; requires X GB" to each note, from Suggestion::total_bytes.
void append_required_memory(std::vector<Suggestion>& suggestions);

/// Returns the suggestion to lower a limit to the highest value with which the job fits, as found
/// by a few dry runs. Returns nullopt if the lowest value does not fit or drops more samples than
/// it keeps. `unlimited_bytes` is the memory with the limit's current value, which does not fit.
std::optional<Suggestion> suggest_lower_limit(const SampleLimit& limit, const Job& job,
                                              const StepConstraints& constraints, int64_t unlimited_bytes,
                                              ChangeEvaluator& evaluator);

}  // namespace vlmtrain::planner
