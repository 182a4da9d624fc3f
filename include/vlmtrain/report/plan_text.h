#pragma once

#include <string>
#include <vector>

#include "vlmtrain/planner/plan.h"
#include "vlmtrain/planner/savings_table.h"

namespace vlmtrain::report {

// Memory is given in GB of 10⁹ bytes, like in data sheets of GPUs. Names from outside (path of the
// model, id of a sample) are shown without control characters.

/// Returns the plan's answer in one line without line break: "fits: 66.3 of 84.2 GB, micro-batch 2
/// x accumulation 8 = global batch 16, recomputing 9 of 27 vision blocks", or the required memory
/// and the GPU's.
std::string format_plan_headline(const planner::Plan& plan);

/// Returns an error message: the headline, then one suggestion per line, first those that make it
/// fit.
std::string format_plan_error(const planner::Plan& plan);

/// The style of text for a terminal.
struct TextStyle {
  bool color = false;   ///< ANSI escape sequences
  bool unicode = true;  ///< bars of block characters; otherwise ASCII
  int width = 80;       ///< columns of the terminal; text uses 64 to 100
};

/// Returns the plan as text for a terminal: headline, facts, memory by component as bars,
/// alternatives, suggestions, effort. Ends with a line break.
std::string format_plan(const planner::Plan& plan, const TextStyle& style);

/// Returns a remark in the plan's width. Ends with a line break.
std::string format_remark(const std::string& remark, const TextStyle& style);

/// Returns the savings table: the memory of each row, and its plan for the GPU. Ends with a line
/// break.
std::string format_savings_table(const std::vector<planner::SavingsRow>& rows, const TextStyle& style);

}  // namespace vlmtrain::report
