#pragma once

#include <string>
#include <vector>

#include "vlmtrain/planner/plan.h"
#include "vlmtrain/planner/savings_table.h"

namespace vlmtrain::report {

// Memory is given in GB of 10⁹ bytes, like in data sheets of GPUs. Control characters in strings of
// the user, such as model paths and sample ids, are shown as escapes.

/// Returns the result of the plan as one line without line break: "fits: 66.3 of 84.2 GB,
/// micro-batch 2 x accumulation 8 = global batch 16, recomputing 9 of 27 vision blocks". If the
/// plan does not fit, the line has the required and the available memory.
std::string format_plan_headline(const planner::Plan& plan);

/// Returns an error message: the headline, then one suggestion per line. Suggestions that make the
/// plan fit come first.
std::string format_plan_error(const planner::Plan& plan);

/// The style of text for a terminal.
struct TextStyle {
  bool color = false;   ///< ANSI escape sequences
  bool unicode = true;  ///< bars of block characters; otherwise ASCII
  int width = 80;       ///< columns of the terminal; text uses 64 to 100
};

/// Returns the plan as text for a terminal: headline, facts, memory by component as bars,
/// alternatives, suggestions, planning effort. Ends with a line break.
std::string format_plan(const planner::Plan& plan, const TextStyle& style);

/// Returns the remark, wrapped to the width of the plan's text. Ends with a line break.
std::string format_remark(const std::string& remark, const TextStyle& style);

/// Returns the savings table: the memory of each row, and its plan for the GPU. Ends with a line
/// break.
std::string format_savings_table(const std::vector<planner::SavingsRow>& rows, const TextStyle& style);

}  // namespace vlmtrain::report
