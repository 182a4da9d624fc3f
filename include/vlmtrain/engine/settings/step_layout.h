#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "vlmtrain/models/model_settings.h"

namespace vlmtrain::engine {

/// The default number of rows of logits per chunk. With a vocabulary of 152,000, a chunk of fp32
/// logits takes 311 MB, little compared with the saved tensors of a model's blocks. Fewer rows make
/// the matrix products slower; more rows need more memory without a speedup.
inline constexpr int64_t kDefaultLossChunkRows = 512;

/// A constraint of an objective on the split into micro-batches.
struct SplitConstraint {
  /// Size of a unit: consecutive samples that must be in the same micro-batch. Divides the number
  /// of samples.
  int64_t unit_size = 1;
  /// Group of each sample. A micro-batch has samples of one group only. A unit has the group of its
  /// first sample. Empty if there is only one group.
  std::vector<int64_t> groups = {};
};

/// The split of a step's samples into micro-batches. Loss and gradients depend on it only by
/// rounding.
struct MicroBatchSplit {
  std::vector<int64_t> order;  ///< sample indices of the first micro-batch, then of the second, …
  std::vector<int64_t> sizes;  ///< number of samples of each micro-batch, a multiple of `unit_size`
  int64_t unit_size = 1;       ///< see SplitConstraint

  bool operator==(const MicroBatchSplit&) const = default;

  /// Returns the number of micro-batches.
  int64_t num_micro_batches() const { return std::ssize(sizes); }
  /// Returns the sample indices of a micro-batch, a view of `order`.
  std::span<const int64_t> get_sample_indices(int64_t index) const;
};

/// Returns the split of samples 0, 1, 2, … in this order into micro-batches of these sizes.
MicroBatchSplit split_in_order(std::vector<int64_t> sizes);

/// Returns the split of `samples` samples into micro-batches of `size` samples; the last one of
/// each group may be smaller. Groups follow each other in ascending order, and samples keep their
/// order within a group. `size` is rounded down to a multiple of the unit, but not below one unit.
/// REQUIRES: size > 0.
MicroBatchSplit split_evenly(int64_t samples, int64_t size, const SplitConstraint& constraint = {});

/// The micro-batches that are subdivided after one ran out of memory.
enum class SubdivisionMode {
  kFailedOnly,      ///< only the failed one; for dry runs, where another attempt is cheap
  kAtLeastAsLarge,  ///< also those with at least as many samples, which would probably fail next
  kSingleSamples,   ///< all micro-batches, into single units
};

/// Returns `split` with the failed micro-batch, and others by `mode`, divided into two halves or
/// into single units. `failed_index` is the index of the failed micro-batch, or −1 for the largest
/// one. Returns nullopt if nothing can be divided.
std::optional<MicroBatchSplit> subdivide_split(const MicroBatchSplit& split, int64_t failed_index,
                                               SubdivisionMode mode);

/// The split of a step into micro-batches, and the settings of a step that save memory. Loss and
/// gradients depend on them only by rounding.
struct StepLayout {
  MicroBatchSplit split;
  models::RecomputeBlockCounts recompute;           ///< blocks with activation checkpointing
  int64_t vision_tiles_per_pass = 0;                ///< tiles per pass of the vision tower; 0: all of a micro-batch
  int64_t loss_chunk_rows = kDefaultLossChunkRows;  ///< rows of logits that exist at a time
  /// Whether, on CUDA, each micro-batch is copied to the device while the previous one computes.
  /// Two micro-batches then exist at a time.
  bool copies_ahead = true;

  bool operator==(const StepLayout&) const = default;

  /// Returns how many more micro-batches this layout has than `other`.
  int64_t count_extra_micro_batches(const StepLayout& other) const;
};

/// The chunk sizes of an evaluation pass. Results depend on them only by rounding.
struct EvaluationLayout {
  int64_t vision_tiles_per_pass = 0;                ///< see StepLayout; 0: all tiles of the batch
  int64_t loss_chunk_rows = kDefaultLossChunkRows;  ///< rows of logits per chunk
};

/// The layout with the least memory. Chunks below 128 rows save little, because the output weight
/// is far larger than their logits.
inline constexpr EvaluationLayout kMinMemoryEvaluationLayout{.vision_tiles_per_pass = 1, .loss_chunk_rows = 128};

/// Returns `layout` with a subdivided split (see subdivide_split()); nullopt if nothing can be
/// divided.
std::optional<StepLayout> subdivide_micro_batches(StepLayout layout, int64_t failed_index, SubdivisionMode mode);

/// Returns `layout` with copies_ahead = false; nullopt if nothing is copied ahead already.
std::optional<StepLayout> disable_copy_ahead(StepLayout layout);

/// Returns the layout with the least memory for the same micro-batches: all blocks are recomputed,
/// vision passes have one tile, loss chunks are small, and nothing is copied ahead. `all_blocks` is
/// the number of blocks of the model. Returns nullopt if `layout` is that layout.
std::optional<StepLayout> minimize_layout_memory(StepLayout layout, const models::RecomputeBlockCounts& all_blocks);

}  // namespace vlmtrain::engine
