#pragma once

#include <string>
#include <vector>

#include "vlmtrain/planner/savings_table.h"
#include "vlmtrain/report/plan_text.h"

namespace vlmtrain::report {

/// The rungs as a table: what each takes by itself, and its plan for the card. Ends with a line break.
std::string format_savings_table(const std::vector<planner::SavingsRow>& rows, const TextStyle& style);

}  // namespace vlmtrain::report
