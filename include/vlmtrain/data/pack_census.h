#pragma once

#include <cstdint>
#include <vector>

#include "vlmtrain/data/draw_order.h"
#include "vlmtrain/data/packing.h"

namespace vlmtrain::data {

/// The packs of all lanes in their first epoch, lane by lane. REQUIRES: the order has packs.
Packs collect_first_epoch_packs(const SampleOrder& order);

/// How full packs are.
struct PackFill {
  int64_t packs = 0;
  double tokens = 0;  ///< mean share of the limit
  double num_media = 0;
  int64_t max_tiles = 0;  ///< of one pack
  /// Packs that took no more for their images or tiles while there was room for another sample's tokens.
  int64_t limited_by_media = 0;
};

/// What each pack of an epoch holds, and what keeps it from holding more.
struct PackStatistics {
  PackFill fill;
  std::vector<SampleSize> packs = {};  ///< sums over their samples
  std::vector<int64_t> samples = {};   ///< of each
  // Of fill.limited_by_media.
  int64_t limited_by_images = 0;  ///< the shortest sample's tokens would fit in, and no picture more may
  int64_t limited_by_tiles = 0;   ///< the same of tiles, where its images would let one in
  int64_t limited_by_tokens() const { return fill.packs - limited_by_images - limited_by_tiles; }

  std::vector<int64_t> largest_tile_pack = {};  ///< the samples of the pack with most tiles; of several the first
};

PackStatistics compute_pack_statistics(const Packs& packs, const std::vector<SampleSize>& sizes,
                                       const PackLimits& limits);

}  // namespace vlmtrain::data
