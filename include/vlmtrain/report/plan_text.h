#pragma once

#include <string>
#include <vector>

#include "vlmtrain/planner/plan.h"
#include "vlmtrain/planner/savings_table.h"

namespace vlmtrain::report {

// Bytes are given in GB of 10⁹ bytes, as data sheets of cards do. What comes from outside (model's path, sample's id)
// is shown without its control characters.

/// The answer in one line, without line break: "fits: 66.3 of 84.2 GB, micro-batch 2 x accumulation 8 = global batch
/// 16, recomputing 9 of 27 vision blocks", or how much is needed at least and what the card has for it.
std::string format_plan_headline(const planner::Plan& plan);

/// For an error message: the headline, then the suggestions, one a line, first those that make it fit.
std::string format_plan_error(const planner::Plan& plan);

struct TextStyle {
  bool color = false;   ///< ANSI escape sequences
  bool unicode = true;  ///< bars of block characters, else of ASCII
  int width = 80;       ///< columns of the terminal; text is set in 64 to 100
};

/// A plan for people: the headline, what is planned for, memory by component as bars and bytes, the alternatives, what
/// would help, and how it was found. Ends with a line break.
std::string format_plan(const planner::Plan& plan, const TextStyle& style);

/// A sentence or two beside a plan, in its width. Ends with a line break.
std::string format_remark(const std::string& remark, const TextStyle& style);

/// The rungs as a table: what each takes by itself, and its plan for the card. Ends with a line break.
std::string format_savings_table(const std::vector<planner::SavingsRow>& rows, const TextStyle& style);

}  // namespace vlmtrain::report
