#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace vlmtrain::data {

/// What of a sample counts for where it is put.
struct SampleSize {
  int64_t tokens = 0;     ///< image tokens included
  int64_t num_media = 0;  ///< media of all kinds
  int64_t tiles = 0;      ///< rows of pixels: tiles, or patches of native resolution
};

/// What a pack may hold at most.
struct PackLimits {
  int64_t tokens = 4096;
  int64_t num_media = 18;
  std::optional<int64_t> tiles = std::nullopt;
  int64_t window = 4096;  ///< samples, in the order in which they are drawn, that packs are made of together

  bool fits(const SampleSize& size) const {
    return size.tokens <= tokens && size.num_media <= num_media && (!tiles || size.tiles <= *tiles);
  }
};

/// Packs of samples: `samples` one pack behind the other, and where each ends.
struct Packs {
  std::vector<int64_t> samples;
  std::vector<int64_t> ends;  ///< ascending, the last is samples.size()
};

/// Puts the samples of `order` into packs, window by window: the largest first, each where it leaves least room for
/// tokens (best fit decreasing). The packs of a window are shuffled by `seed`. `sizes`: of the data set, by index.
/// REQUIRES: each sample of `order` fits into an empty pack.
Packs pack(std::span<const int64_t> order, const std::vector<SampleSize>& sizes, const PackLimits& limits,
           uint64_t seed);

}  // namespace vlmtrain::data
