#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "vlmtrain/base/options.h"
#include "vlmtrain/models/model.h"

namespace vlmtrain::planner {

/// The share of the GPU's memory that a plan keeps free (get_margin_percent()).
enum class MemoryMode { kConservative, kBalanced, kAggressive };

/// Returns the modes with the names that the configuration and --mode use.
const std::vector<std::pair<std::string, MemoryMode>>& memory_modes();
std::string to_string(MemoryMode mode);

/// The option memory.recompute: `auto`, `none`, `all`, a number of blocks in each tower, or `V+L`: V
/// blocks of the vision tower and L of the language model. `V+L/A`: A of the L blocks keep the output
/// of their attention.
struct RecomputeOption {
  std::string text = "auto";

  /// Returns the option as `V+L` or `V+L/A`.
  static RecomputeOption from_blocks(const models::RecomputeBlocks& blocks);

  bool is_auto() const { return text == "auto"; }
  /// Returns the blocks of a model that has `all_blocks`. REQUIRES: !is_auto().
  models::RecomputeBlocks resolve_blocks(const models::RecomputeBlocks& all_blocks) const;
};

/// The section `memory` of the configuration. The planner chooses the values that are `auto`.
struct MemoryOptions {
  Auto<double> limit_gb;  ///< 10⁹ bytes
  MemoryMode mode = MemoryMode::kBalanced;
  RecomputeOption recompute;
  Auto<int64_t> vision_tiles_per_pass;
  Auto<int64_t> loss_chunk_rows;
  bool expandable_segments = true;
  bool allow_splits = false;
  bool look_ahead = true;
  double empty_cache_above = 0.3;
};

/// Declares the options of the section in `table`, with `options` as their destination.
void declare(OptionTable& table, MemoryOptions& options);

}  // namespace vlmtrain::planner
