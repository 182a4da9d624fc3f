#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "vlmtrain/models/model.h"

namespace vlmtrain::engine {

/// How the samples of a step are cut into micro-batches, and what is computed twice to save memory. None of it changes
/// loss or gradients beyond rounding.
struct StepLayout {
  std::vector<int64_t> micro_batches;  ///< samples of each, in order; the sum is the global batch
  models::RecomputeBlocks recompute;
  int64_t vision_tiles_per_pass = 0;  ///< 0: all of a micro-batch
  int64_t loss_chunk_rows = 1024;

  bool operator==(const StepLayout&) const = default;

  /// Place in the step of the first sample of a micro-batch.
  int64_t first_sample(int64_t micro_batch) const;
  /// How many micro-batches more there are than in `other`.
  int64_t splits_against(const StepLayout& other) const;
};

/// `samples` in micro-batches of `size`; the last may be smaller.
std::vector<int64_t> equal_micro_batches(int64_t samples, int64_t size);

/// The same of one task after another, so that each micro-batch is of one: `runs` are the samples of each.
std::vector<int64_t> micro_batches_of_runs(const std::vector<int64_t>& runs, int64_t size);

/// Which micro-batches are cut in two where one did not fit.
enum class Cut {
  kOnlyThat,    ///< where trying again costs little: in a rehearsal
  kAllAsLarge,  ///< and those of at least as many samples, which would probably fail next
  kSingles,     ///< all, down to single samples
};

/// `layout` with smaller micro-batches; nothing where the failed one (an index; -1: none in particular, the largest
/// then) is a single sample.
std::optional<StepLayout> with_smaller_micro_batches(StepLayout layout, int64_t failed, Cut cut);

/// What takes least memory for the same micro-batches: everything recomputed, one tile a vision pass, the loss in small
/// chunks. Nothing where that is what `layout` does already.
std::optional<StepLayout> with_least_memory(StepLayout layout, const models::RecomputeBlocks& all_blocks);

}  // namespace vlmtrain::engine
