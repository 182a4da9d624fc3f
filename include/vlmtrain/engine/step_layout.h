#pragma once

#include <cstdint>
#include <optional>

#include "vlmtrain/engine/cut.h"
#include "vlmtrain/models/model.h"
#include "vlmtrain/nn/fused_loss.h"

namespace vlmtrain::engine {

/// How the samples of a step are cut into micro-batches, and what is computed twice to save memory. None of it changes
/// loss or gradients beyond rounding.
struct StepLayout {
  MicroBatchSplit split;
  models::RecomputeBlocks recompute;
  int64_t vision_tiles_per_pass = 0;                    ///< 0: all of a micro-batch
  int64_t loss_chunk_rows = nn::kDefaultLossChunkRows;  ///< rows of logits that exist at a time
  /// On CUDA: a micro-batch is copied to the device while the one before it computes, so that two are there.
  bool copies_ahead = true;

  bool operator==(const StepLayout&) const = default;

  /// How many micro-batches more there are than in `other`.
  int64_t count_extra_splits(const StepLayout& other) const;
};

/// `layout` with a cut that is divided; nothing where there is nothing to divide.
std::optional<StepLayout> subdivide_micro_batches(StepLayout layout, int64_t failed_index, SubdivisionMode mode);

/// `layout` with nothing copied ahead; nothing where nothing is.
std::optional<StepLayout> disable_copy_ahead(StepLayout layout);

/// What takes least memory for the same micro-batches: everything recomputed, one tile a vision pass, the loss in small
/// chunks, nothing copied ahead. Nothing where that is what `layout` does already.
std::optional<StepLayout> minimize_memory(StepLayout layout, const models::RecomputeBlocks& all_blocks);

}  // namespace vlmtrain::engine
