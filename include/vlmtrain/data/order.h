#pragma once

#include <compare>
#include <cstdint>
#include <vector>

namespace vlmtrain::data {

/// A place in the order in which a lane is drawn: behind `offset` samples of `epoch`.
struct EpochPosition {
  int64_t epoch = 0;
  int64_t offset = 0;

  auto operator<=>(const EpochPosition&) const = default;
};

/// Where the next sample is drawn. With the seed it is all that a checkpoint needs to go on with the same samples, at
/// once.
struct Cursor {
  std::vector<EpochPosition> sources;  ///< of each lane; empty: at the start
  /// What each lane is behind its share, in units; negative where it is ahead. Empty: nothing.
  std::vector<double> deficits;
  int64_t num_batches = 0;  ///< drawn so far, which a schedule of shares goes by

  bool operator==(const Cursor&) const = default;
};

/// 0 … samples-1 in the order in which an epoch draws them: a function of its arguments alone. `source`: lanes have
/// different orders.
std::vector<int64_t> shuffle_epoch(int64_t samples, uint64_t seed, int64_t epoch, int64_t source = 0);

/// The same where samples of a block cost little more to read than one: blocks are shuffled, and the samples within
/// each few blocks that come one after the other; a few blocks in all are as none. `block_starts`: where each begins,
/// ascending from 0.
std::vector<int64_t> shuffle_epoch_by_blocks(int64_t samples, const std::vector<int64_t>& block_starts, uint64_t seed,
                                             int64_t epoch, int64_t source = 0);

}  // namespace vlmtrain::data
