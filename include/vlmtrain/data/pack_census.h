#pragma once

#include <cstdint>
#include <vector>

#include "vlmtrain/data/draw_order.h"
#include "vlmtrain/data/packing.h"

namespace vlmtrain::data {

/// The packs of all lanes in their first epoch, lane by lane. REQUIRES: the order has packs.
Packs first_packs(const DrawOrder& order);

/// What each pack of an epoch holds, and what keeps it from holding more.
struct PackCensus {
  PackFill fill;
  std::vector<SampleSize> packs = {};  ///< sums over their samples
  std::vector<int64_t> samples = {};   ///< of each
  // Each pack is counted once.
  int64_t bound_by_images = 0;  ///< the shortest sample's tokens would fit in, and no picture more may
  int64_t bound_by_tiles = 0;   ///< the same of tiles, where its images would let one in
  int64_t bound_by_tokens() const { return fill.packs - bound_by_images - bound_by_tiles; }

  std::vector<int64_t> of_most_tiles = {};  ///< the samples of the pack with most tiles; of several the first
};

PackCensus census_of(const Packs& packs, const std::vector<SampleSize>& sizes, const PackLimits& limits);

}  // namespace vlmtrain::data
