#pragma once

#include <cstdint>
#include <vector>

#include "vlmtrain/data/draw_order.h"
#include "vlmtrain/data/packing.h"

namespace vlmtrain::data {

/// The packs of all lanes in their first epoch, lane by lane. REQUIRES: the order has packs.
Packs first_packs(const DrawOrder& order);

/// How full packs are.
struct PackFill {
  int64_t packs = 0;
  double tokens = 0;  ///< mean share of the limit
  double images = 0;
  int64_t most_tiles = 0;  ///< of one pack
  /// Packs that took no more for their images or tiles while there was room for another sample's tokens.
  int64_t bound_by_media = 0;
};

/// What each pack of an epoch holds, and what keeps it from holding more.
struct PackCensus {
  PackFill fill;
  std::vector<SampleSize> packs = {};  ///< sums over their samples
  std::vector<int64_t> samples = {};   ///< of each
  // Of fill.bound_by_media.
  int64_t bound_by_images = 0;  ///< the shortest sample's tokens would fit in, and no picture more may
  int64_t bound_by_tiles = 0;   ///< the same of tiles, where its images would let one in
  int64_t bound_by_tokens() const { return fill.packs - bound_by_images - bound_by_tiles; }

  std::vector<int64_t> of_most_tiles = {};  ///< the samples of the pack with most tiles; of several the first
};

PackCensus census_of(const Packs& packs, const std::vector<SampleSize>& sizes, const PackLimits& limits);

}  // namespace vlmtrain::data
