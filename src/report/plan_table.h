#pragma once

#include <string>
#include <vector>

#include "vlmtrain/planner/plan.h"

namespace vlmtrain::report {

/// A line of the table of alternatives, and whether it is the plan's own.
struct AlternativeLine {
  std::string text;
  bool chosen = false;
  bool fits = false;
  bool rehearsed = false;
};

struct AlternativesTable {
  std::string header;
  std::vector<AlternativeLine> lines;
  size_t left_out = 0;         ///< alternatives that are not shown
  std::string chosen_differs;  ///< in its passes, from the others: "1 tile a vision pass and …"; empty if not
};

/// At most `most` alternatives, those with micro-batches nearest to the chosen one, in the plan's order; the chosen one
/// is always there. Lines take up to 74 columns, or up to 64, without tokens per second, if there are fewer `columns`.
/// REQUIRES: most > 0.
AlternativesTable alternatives_table(const planner::Plan& plan, size_t most, int columns);

}  // namespace vlmtrain::report
