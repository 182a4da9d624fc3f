#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "vlmtrain/models/model.h"
#include "vlmtrain/nn/layers/losses.h"

namespace vlmtrain::engine {

/// A constraint of an objective on the split into micro-batches.
struct SplitConstraint {
  /// Number of consecutive samples that must be in the same micro-batch. Divides the number of
  /// samples.
  int64_t unit = 1;
  /// Group of each sample; different groups share no micro-batch. A unit has the group of its first
  /// sample. Empty: one group.
  std::vector<int64_t> groups = {};
};

/// The split of a step's samples into micro-batches. Loss and gradients depend on it only by
/// rounding.
struct MicroBatchSplit {
  std::vector<int64_t> order;  ///< sample indices, micro-batch after micro-batch
  std::vector<int64_t> sizes;  ///< samples of each micro-batch, multiples of `unit`
  int64_t unit = 1;            ///< see SplitConstraint

  bool operator==(const MicroBatchSplit&) const = default;

  /// Returns the number of micro-batches.
  int64_t micro_batches() const { return std::ssize(sizes); }
  /// Returns the sample indices of a micro-batch, a view of `order`.
  std::span<const int64_t> micro_batch(int64_t index) const;
};

/// Returns the split of samples in order into micro-batches of these sizes.
MicroBatchSplit split_in_order(std::vector<int64_t> sizes);

/// Returns the split of `samples` samples into micro-batches of `size`; the last one of each group
/// may be smaller. Groups follow each other in ascending order, and samples keep their order within
/// a group. `size` is rounded down to a multiple of the unit, but at least one unit. REQUIRES: size
/// > 0.
MicroBatchSplit split_evenly(int64_t samples, int64_t size, const SplitConstraint& constraint = {});

/// The micro-batches to subdivide after one ran out of memory.
enum class SubdivisionMode {
  kFailedOnly,      ///< only the failed one: for dry runs, where another attempt is cheap
  kAtLeastAsLarge,  ///< also those with at least as many samples, which would probably fail next
  kSingleSamples,   ///< all, into single units
};

/// Returns `split` with the failed micro-batch divided into two halves or more. `failed_index` −1:
/// the largest one. Returns nullopt if nothing can be divided.
std::optional<MicroBatchSplit> subdivide(const MicroBatchSplit& split, int64_t failed_index, SubdivisionMode mode);

/// The split of a step into micro-batches, and its measures to save memory. Loss and gradients
/// depend on them only by rounding.
struct StepLayout {
  MicroBatchSplit split;
  models::RecomputeBlocks recompute;
  int64_t vision_tiles_per_pass = 0;                    ///< 0: all tiles of a micro-batch
  int64_t loss_chunk_rows = nn::kDefaultLossChunkRows;  ///< rows of logits per chunk
  /// On CUDA: copies each micro-batch to the device while the previous one computes, so two exist
  /// at a time.
  bool copies_ahead = true;

  bool operator==(const StepLayout&) const = default;

  /// Returns the number of micro-batches minus that of `other`.
  int64_t count_extra_splits(const StepLayout& other) const;
};

/// Returns `layout` with a subdivided split; nullopt if nothing can be divided.
std::optional<StepLayout> subdivide_micro_batches(StepLayout layout, int64_t failed_index, SubdivisionMode mode);

/// Returns `layout` without copies ahead; nullopt if it has none.
std::optional<StepLayout> disable_copy_ahead(StepLayout layout);

/// Returns the layout of minimum memory with the same micro-batches: all blocks recomputed, one
/// tile per vision pass, small loss chunks, no copies ahead. Returns nullopt if `layout` has all of
/// these.
std::optional<StepLayout> minimize_memory(StepLayout layout, const models::RecomputeBlocks& all_blocks);

}  // namespace vlmtrain::engine
