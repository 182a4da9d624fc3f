#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace vlmtrain::engine {

/// What an objective asks of a cut.
struct SplitConstraint {
  /// Samples that stand or fall together: each `unit` neighbours of a step. It divides the number of samples.
  int64_t unit = 1;
  /// Of each sample: those of different groups share no micro-batch; a unit is of the group of its first sample.
  /// Empty: any may be together.
  std::vector<int64_t> groups = {};
};

/// How the samples of a step are divided into micro-batches: a permutation of them, and how many each takes of it.
/// Neither loss nor gradients depend on it beyond rounding.
struct MicroBatchSplit {
  std::vector<int64_t> order;  ///< places in the step, one micro-batch after another
  std::vector<int64_t> sizes;  ///< samples of each micro-batch; multiples of `unit`
  int64_t unit = 1;            ///< as SplitConstraint's

  bool operator==(const MicroBatchSplit&) const = default;

  int64_t micro_batches() const { return std::ssize(sizes); }
  /// The places of a micro-batch's samples.
  std::span<const int64_t> micro_batch(int64_t index) const;
};

/// Samples in their order, in micro-batches of these sizes.
MicroBatchSplit split_in_order(std::vector<int64_t> sizes);

/// `samples` in micro-batches of `size`, the last of each group maybe smaller; samples of a group stay in their order,
/// groups are in that of their numbers. A size that is no multiple of the unit is rounded down to one, but to at least
/// one unit. REQUIRES: size > 0.
MicroBatchSplit split_evenly(int64_t samples, int64_t size, const SplitConstraint& constraint = {});

/// Which micro-batches are divided where one did not fit.
enum class SubdivisionMode {
  kFailedOnly,      ///< where trying again costs little: in a rehearsal
  kAtLeastAsLarge,  ///< and those of at least as many samples, which would probably fail next
  kSingleSamples,   ///< all, down to single units
};

/// `split` with smaller micro-batches: the failed one (an index; -1: none in particular, the largest then) in two
/// halves, or more. Nothing where there is nothing to divide.
std::optional<MicroBatchSplit> subdivide(const MicroBatchSplit& split, int64_t failed_index, SubdivisionMode mode);

}  // namespace vlmtrain::engine
