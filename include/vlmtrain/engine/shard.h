#pragma once

#include "vlmtrain/nn/shard.h"

namespace vlmtrain::engine {

using nn::ElementRange;
using nn::kShardAlignment;
using nn::Shard;

/// What of a training each rank holds only a part of, while the others hold the rest (Rajbhandari et al. 2020, arXiv
/// 1910.02054). In the order of what that saves.
enum class Sharding {
  kNone,       ///< nothing: all hold the same
  kOptimizer,  ///< AdamW's moments and fp32 master weights: ZeRO's first stage
  kHybrid,     ///< these, and weights and gradients of all blocks, among the ranks of a node; all nodes hold the same
  kFull,       ///< the same among all ranks: ZeRO's third stage
};

constexpr const char* to_string(Sharding sharding) {
  switch (sharding) {
    case Sharding::kOptimizer:
      return "optimizer";
    case Sharding::kFull:
      return "full";
    case Sharding::kHybrid:
      return "hybrid";
    case Sharding::kNone:
      break;
  }
  return "none";
}

/// Whether a rank holds only a part of the blocks' weights.
constexpr bool shards_blocks(Sharding sharding) {
  return sharding == Sharding::kFull || sharding == Sharding::kHybrid;
}

}  // namespace vlmtrain::engine
