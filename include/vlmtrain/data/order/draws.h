#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace vlmtrain::data {

/// A position in the sample order of a mixture source: in epoch `epoch`, before the sample at
/// `offset`.
struct EpochPosition {
  int64_t epoch = 0;
  int64_t offset = 0;

  auto operator<=>(const EpochPosition&) const = default;
};

/// The position of a run in its sample order. Together with the seed it is the complete state of
/// data loading, so that a checkpoint resumes without replaying steps.
struct Cursor {
  std::vector<EpochPosition> sources;  ///< one for each mixture source; empty at the start
  /// By source, the number of units that it is behind its share: its share of all draws minus its
  /// draws. Empty if all are 0.
  std::vector<double> source_deficits;
  int64_t num_batches = 0;  ///< batches drawn so far; selects the shares of a schedule

  bool operator==(const Cursor&) const = default;
};

/// Returns the numbers from 0 to samples - 1 in the random order of an epoch, a function of the
/// arguments only. `source` is the mixture source; sources have independent orders.
std::vector<int64_t> shuffle_epoch(int64_t samples, uint64_t seed, int64_t epoch, int64_t source = 0);

/// Returns a random order for records stored in blocks, such as row groups of Parquet files, where
/// reading a block costs little more than reading one record. Shuffles the blocks, then the samples
/// within each group of consecutive blocks. If all blocks form one group, equals shuffle_epoch().
/// `block_starts` are the first samples of the blocks. REQUIRES: they ascend from 0.
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
struct SourceShares {
  int64_t first_batch = 0;     ///< counted from 0
  std::vector<double> shares;  ///< one for each source, finite, >= 0, not all 0; on any scale
};

/// A deterministic sampler of mixture sources. After any number of draws, the number of draws of
/// each source differs by less than one from its share of all draws: Tijdeman's algorithm (The
/// chairman assignment problem, 1980). With shares of 1/2, 1/4 and 1/4, a batch of 16 has 8, 4 and
/// 4 units. Thread-safe.
class MixtureSampler {
 public:
  /// REQUIRES: at least one change; the first is from batch 0, and batches ascend.
  explicit MixtureSampler(std::vector<SourceShares> changes);

  /// Returns the source of the next unit and updates `cursor.source_deficits`. REQUIRES:
  /// `cursor.source_deficits` has one value for each source, unless there is a single source.
  int64_t draw_source(Cursor& cursor) const;

  /// Returns the shares of a batch, which sum up to 1.
  const std::vector<double>& shares(int64_t batch) const;
  int64_t num_sources() const { return std::ssize(share_changes_.front().shares); }

 private:
  std::vector<SourceShares> share_changes_;
};

/// The sizes of a sample, or the sums over the samples of a pack, that PackLimits restricts.
struct SampleSize {
  int64_t tokens = 0;     ///< image tokens included
  int64_t num_media = 0;  ///< images, videos and volumes
  int64_t tiles = 0;      ///< rows of pixels: tiles, or patches in native resolution
};

/// The limits of a pack.
struct PackLimits {
  int64_t max_tokens = 4096;                        ///< image tokens included
  int64_t max_media = 18;                           ///< images, videos and volumes together
  std::optional<int64_t> max_tiles = std::nullopt;  ///< rows of pixels; nothing: no limit
  /// Consecutive samples of the order that are packed together. With larger windows, samples with
  /// many media share packs more often, which fills packs less.
  int64_t window_size = 4096;

  /// Returns whether a pack may have this size.
  bool fits(const SampleSize& size) const {
    return size.tokens <= max_tokens && size.num_media <= max_media && (!max_tiles || size.tiles <= *max_tiles);
  }
};

/// The samples of all packs, pack after pack.
struct PackedSamples {
  std::vector<int64_t> samples;    ///< indices in the data set
  std::vector<int64_t> pack_ends;  ///< end of each pack in `samples`, ascending
};

/// Packs the samples of `order`, window by window, by best fit decreasing: in descending order of
/// size, each sample goes into the open pack in which it leaves the fewest tokens free. The packs
/// of a window are shuffled by `seed`. `sizes` has the sizes of all samples of the data set, by
/// index. REQUIRES: each sample of `order` fits into an empty pack.
PackedSamples make_packs(std::span<const int64_t> order, const std::vector<SampleSize>& sizes, const PackLimits& limits,
                         uint64_t seed);

/// The mean fill of packs.
struct PackFill {
  int64_t num_packs = 0;  ///< 0 without packing
  double token_fill = 0;  ///< mean tokens as a share of PackLimits::max_tokens, 0 to 1
  double media_fill = 0;  ///< mean number of media as a share of PackLimits::max_media, 0 to 1
  int64_t max_tiles = 0;  ///< tiles of the pack that has the most
  /// Number of packs that have reached a limit of media or tiles, although the tokens of the
  /// shortest sample would still fit.
  int64_t num_media_limited_packs = 0;
};

/// The sizes of the packs of an epoch, and the limits that they reach.
struct PackStatistics {
  PackFill fill;
  std::vector<SampleSize> pack_sizes = {};       ///< by pack, the sums over its samples
  std::vector<int64_t> pack_sample_counts = {};  ///< by pack
  // The two parts of fill.num_media_limited_packs.
  int64_t num_packs_at_media_limit = 0;  ///< packs at the limit of media
  int64_t num_packs_at_tile_limit = 0;   ///< packs at the limit of tiles, but not at the limit of media
  int64_t num_token_limited_packs() const {
    return fill.num_packs - num_packs_at_media_limit - num_packs_at_tile_limit;
  }

  std::vector<int64_t> largest_pack_sample_indices = {};  ///< of the first pack with the most tiles
};

/// Returns the statistics of packs. `sizes` has the sizes of all samples of the data set, by index.
PackStatistics compute_pack_statistics(const PackedSamples& packs, const std::vector<SampleSize>& sizes,
                                       const PackLimits& limits);

}  // namespace vlmtrain::data
