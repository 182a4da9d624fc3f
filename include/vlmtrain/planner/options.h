#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "vlmtrain/base/options.h"
#include "vlmtrain/engine/settings/training_settings.h"
#include "vlmtrain/models/model_settings.h"
#include "vlmtrain/nn/weights/weight_settings.h"

namespace vlmtrain::planner {

/// How much of the memory a plan keeps free (get_margin_percent()).
enum class MemoryMode { kConservative, kBalanced, kAggressive };

/// Returns each mode with its name in memory.mode and --mode.
const std::vector<std::pair<std::string, MemoryMode>>& list_memory_modes();
std::string to_string(MemoryMode mode);

/// The option memory.recompute. Its values:
/// - `auto`: the planner chooses
/// - `none`, `all`: no blocks, all blocks
/// - `N`: N blocks of the vision tower and N of the language model
/// - `V+L`: V blocks of the vision tower and L of the language model
/// - `V+L/A`: as `V+L`, but A of the L blocks keep the output of their attention
struct RecomputeOption {
  std::string text = "auto";

  /// Returns an option with the text `V+L` or `V+L/A`.
  static RecomputeOption from_block_counts(const models::RecomputeBlockCounts& blocks);

  bool is_auto() const { return text == "auto"; }
  /// Returns the number of blocks to recompute, at most `total_block_counts`, the blocks of the
  /// model. REQUIRES: !is_auto(); `text` has one of the forms above.
  models::RecomputeBlockCounts resolve_block_counts(const models::RecomputeBlockCounts& total_block_counts) const;
};

/// The section `memory` of the configuration (docs/reference/config.md). The planner chooses the values that
/// are `auto`.
struct MemoryOptions {
  AutoOr<double> limit_gb;  ///< limit of the process, in 10⁹ bytes
  MemoryMode mode = MemoryMode::kBalanced;
  RecomputeOption recompute;
  AutoOr<engine::Offload> offload = engine::Offload::kNone;
  AutoOr<bool> offload_activations = false;
  AutoOr<nn::MemoryPlacement> per_layer_embeddings;
  AutoOr<int64_t> vision_tiles_per_pass;  ///< 0: all tiles of a micro-batch
  AutoOr<int64_t> loss_chunk_rows;        ///< rows of logits per chunk
  bool expandable_segments = true;        ///< expandable segments of PyTorch's caching allocator
  bool allow_splits = false;              ///< split a fixed micro-batch size where it does not fit
  bool look_ahead = true;                 ///< dry-run the next steps in a child process
  double empty_cache_threshold = 0.3;     ///< unused share of reserved memory above which the cache is emptied
};

/// Declares the options of the section in `table`, with `options` as their destination.
void declare_options(OptionTable& table, MemoryOptions& options);

}  // namespace vlmtrain::planner
