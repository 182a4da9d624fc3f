#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "vlmtrain/planner/plan.h"

namespace vlmtrain::report {

/// A part of the card's memory when the step takes most.
struct MemoryRow {
  enum class Kind { kUsed, kFree, kMargin };

  std::string name;
  int64_t bytes = 0;
  Kind kind = Kind::kUsed;
};

/// From the first byte of the card to the last. The rows that are used sum to plan.total_bytes(), all of them to the
/// card's bytes; where the plan does not fit, nothing is free and they sum to more.
std::vector<MemoryRow> make_memory_rows(const planner::Plan& plan);

/// How much more than the card has would be needed, the margin included; 0 where the plan fits.
int64_t compute_missing_bytes(const planner::Plan& plan);

}  // namespace vlmtrain::report
