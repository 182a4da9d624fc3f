#pragma once

#include <optional>

#include "planner/trial.h"

namespace vlmtrain::planner {

/// More memory for the plan as it is: a smaller margin or a higher limit, where a person keeps the run from filling the
/// card.
std::vector<Suggestion> more_of_the_card(const Trial& trial);

/// The smallest card that holds it, rehearsed on that card.
std::optional<Suggestion> larger_card(const Trial& trial);

}  // namespace vlmtrain::planner
