#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace vlmtrain::data {

/// The sizes of a sample, or of all samples of a pack, that the limits of a pack count.
struct SampleSize {
  int64_t tokens = 0;     ///< image tokens included
  int64_t num_media = 0;  ///< images, videos and volumes
  int64_t tiles = 0;      ///< rows of pixels: tiles, or patches in native resolution
};

/// The limits of a pack.
struct PackLimits {
  int64_t tokens = 4096;
  int64_t num_media = 18;
  std::optional<int64_t> tiles = std::nullopt;
  int64_t window = 4096;  ///< consecutive samples of the order that are packed together

  bool fits(const SampleSize& size) const {
    return size.tokens <= tokens && size.num_media <= num_media && (!tiles || size.tiles <= *tiles);
  }
};

/// Packs of samples, stored one after another.
struct Packs {
  std::vector<int64_t> samples;
  std::vector<int64_t> ends;  ///< end of each pack in `samples`, ascending
};

/// Packs the samples of `order`, window by window, with best fit decreasing: in descending order of
/// size, each sample goes into the open pack that it fills best by tokens. The packs of a window
/// are shuffled by `seed`. `sizes`: of the data set, by index. REQUIRES: each sample of `order`
/// fits into an empty pack.
Packs pack(std::span<const int64_t> order, const std::vector<SampleSize>& sizes, const PackLimits& limits,
           uint64_t seed);

/// The mean fill of packs.
struct PackFill {
  int64_t packs = 0;
  double tokens = 0;      ///< mean tokens, as a share of PackLimits::tokens
  double num_media = 0;   ///< mean number of media, as a share of PackLimits::num_media
  int64_t max_tiles = 0;  ///< the most tiles of one pack
  /// Packs at their limit of media or tiles with enough tokens free for another sample.
  int64_t limited_by_media = 0;
};

/// The contents of an epoch's packs and the limit that each of them reaches.
struct PackStatistics {
  PackFill fill;
  std::vector<SampleSize> packs = {};  ///< total sizes of each pack
  std::vector<int64_t> samples = {};   ///< number of samples of each pack
  // The two parts of fill.limited_by_media. A pack counts only if the shortest sample's tokens fit
  // into it.
  int64_t limited_by_images = 0;  ///< at the limit of media
  int64_t limited_by_tiles = 0;   ///< at the limit of tiles, below that of media
  int64_t limited_by_tokens() const { return fill.packs - limited_by_images - limited_by_tiles; }

  std::vector<int64_t> largest_tile_pack = {};  ///< samples of the first pack with the most tiles
};

PackStatistics compute_pack_statistics(const Packs& packs, const std::vector<SampleSize>& sizes,
                                       const PackLimits& limits);

}  // namespace vlmtrain::data
