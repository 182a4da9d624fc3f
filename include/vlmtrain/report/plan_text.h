#pragma once

#include <string>

#include "vlmtrain/planner/plan.h"

namespace vlmtrain::report {

/// The answer: "fits: 2 x 8 = 16 samples a step on …, 21.3 of 25.4 GB" or what is missing. One line, no line break.
std::string plan_headline(const planner::Plan& plan);

/// The headline of a plan that does not fit, and what would, for an error message.
std::string plan_refusal(const planner::Plan& plan);

struct TextStyle {
  bool colour = false;  ///< ANSI escape sequences
  int width = 100;      ///< columns of the terminal
};

/// A plan for people: the headline, memory by component as bars and bytes, the alternatives, what would help.
std::string plan_text(const planner::Plan& plan, const TextStyle& style);

}  // namespace vlmtrain::report
