#pragma once

#include <vector>

#include "planner/remedy_rehearsal.h"
#include "vlmtrain/planner/plan.h"

namespace vlmtrain::planner {

/// What would make a plan fit that does not: each is rehearsed, the least change first. `least_bytes`: what the plan
/// takes at least; `detail` is of those choices.
std::vector<Suggestion> remedies_of(RemedyRehearsal& rehearsal, int64_t least_bytes, const RehearsalDetail& detail);

/// At the end of each, in words.
void say_what_is_enough(std::vector<Suggestion>& remedies);

}  // namespace vlmtrain::planner
