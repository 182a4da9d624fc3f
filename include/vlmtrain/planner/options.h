#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "vlmtrain/base/options.h"
#include "vlmtrain/models/model.h"

namespace vlmtrain::planner {

/// How much of the card a plan keeps free.
enum class MemoryMode { kConservative, kBalanced, kAggressive };

/// By the names that the configuration and --mode use.
const std::vector<std::pair<std::string, MemoryMode>>& memory_modes();
std::string name_of(MemoryMode mode);

/// `auto`, `none`, `all_blocks`, a number of blocks in each tower, or `V+L`: V blocks of the vision tower and L of the
/// language model; `V+L/A`: A of the L keep what their attention gave.
struct RecomputeOption {
  std::string text = "auto";

  static RecomputeOption from_blocks(const models::RecomputeBlocks& blocks);

  bool is_auto() const { return text == "auto"; }
  /// Of a model that has `all_blocks`. REQUIRES: not auto.
  models::RecomputeBlocks resolve_blocks(const models::RecomputeBlocks& all_blocks) const;
};

/// Section `memory`: what is traded for memory. The planner fills what is `auto`.
struct MemoryOptions {
  Auto<double> limit_gb;
  MemoryMode mode = MemoryMode::kBalanced;
  RecomputeOption recompute;
  Auto<int64_t> vision_tiles_per_pass;
  Auto<int64_t> loss_chunk_rows;
  bool expandable_segments = true;
  bool allow_splits = false;
  bool look_ahead = true;
  double empty_cache_above = 0.3;
};

void declare(OptionTable& table, MemoryOptions& options);

}  // namespace vlmtrain::planner
