#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <vector>

namespace vlmtrain::data {

/// A position in the sample order of a mixture source: after `offset` samples of `epoch`.
struct EpochPosition {
  int64_t epoch = 0;
  int64_t offset = 0;

  auto operator<=>(const EpochPosition&) const = default;
};

/// The position of a run in its sample order. Together with the seed it is the complete state of
/// data loading, so that a checkpoint resumes without replaying steps.
struct Cursor {
  std::vector<EpochPosition> sources;  ///< one for each mixture source; empty at the start
  /// Units that each source is owed: its share of all draws minus its draws. Empty: all 0.
  std::vector<double> deficits;
  int64_t num_batches = 0;  ///< drawn so far; selects the shares of a schedule

  bool operator==(const Cursor&) const = default;
};

/// Returns the numbers 0 to samples-1 in the order of an epoch, a function of the arguments alone.
/// `source`: the mixture source; sources have independent orders.
std::vector<int64_t> shuffle_epoch(int64_t samples, uint64_t seed, int64_t epoch, int64_t source = 0);

/// Returns a random order for records stored in blocks, such as row groups of Parquet files, where
/// a block costs little more to read than one record. Shuffles the blocks, then the samples within
/// each group of consecutive blocks. Equals shuffle_epoch() if all blocks form one group. REQUIRES:
/// `block_starts`, the first sample of each block, ascends from 0.
std::vector<int64_t> shuffle_epoch_by_blocks(int64_t samples, const std::vector<int64_t>& block_starts, uint64_t seed,
                                             int64_t epoch, int64_t source = 0);

/// A set of samples with its own share of the draws, such as a data source or a task. Its samples
/// are drawn epoch by epoch, independently of the other sources.
struct MixtureSource {
  std::string name;
  std::vector<int64_t> samples;  ///< indices in the data set, ascending; not empty
  double repeat = 1;             ///< passes over these samples in an epoch of the data set
};

/// The shares of the mixture sources from a global batch on.
struct ShareChange {
  int64_t from_batch = 0;      ///< counted from 0
  std::vector<double> shares;  ///< one for each source, finite, >= 0, not all 0; on any scale
};

/// A deterministic sampler of mixture sources. After any number of draws, each source was drawn its
/// share of them to within less than one draw: Tijdeman's algorithm (The chairman assignment
/// problem, 1980). A batch of 16 with shares of 1/2, 1/4 and 1/4 has 8, 4 and 4. Thread-safe.
class MixtureSampler {
 public:
  /// REQUIRES: at least one change, the first from batch 0, ascending.
  explicit MixtureSampler(std::vector<ShareChange> changes);

  /// Returns the source of the next unit and updates `cursor.deficits`.
  /// REQUIRES: as many deficits as sources.
  int64_t choose_source(Cursor& cursor) const;

  /// Returns the shares of a batch, which sum up to 1.
  const std::vector<double>& shares(int64_t batch) const;
  int64_t num_sources() const { return std::ssize(changes_.front().shares); }

 private:
  std::vector<ShareChange> changes_;
};

}  // namespace vlmtrain::data
