#pragma once

#include <string>
#include <vector>

#include "vlmtrain/planner/plan.h"

namespace vlmtrain::report {

/// A line of the table of alternatives, and whether it is the plan's own.
struct AlternativeLine {
  std::string text;
  bool is_best = false;
  bool fits = false;
  bool from_dry_run = false;
};

struct AlternativesTable {
  std::string header;
  std::vector<AlternativeLine> lines;
  size_t num_hidden = 0;        ///< alternatives that are not shown
  std::string best_difference;  ///< in its passes, from the others: "1 tile a vision pass and …"; empty if not
};

/// At most `max_rows` alternatives, those with micro-batches nearest to the chosen one, in the plan's order; the chosen
/// one is always there. Lines take up to 74 columns, or up to 64, without tokens per second, if there are fewer
/// `columns`. REQUIRES: most > 0.
AlternativesTable make_alternatives_table(const planner::Plan& plan, size_t max_rows, int columns);

}  // namespace vlmtrain::report
