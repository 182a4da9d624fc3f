#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace vlmtrain::data {

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
  /// many media share packs more often, which fills packs less (docs/benchmarks/data.md).
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
