#pragma once

#include <cstdint>

namespace vlmtrain::engine {

/// What of a training each rank holds only a part of, while the others hold the rest (Rajbhandari et al. 2020, arXiv
/// 1910.02054).
enum class Sharding {
  kNone,       ///< nothing: all hold the same
  kOptimizer,  ///< AdamW's moments and fp32 master weights: ZeRO's first stage
};

constexpr const char* name_of(Sharding sharding) {
  return sharding == Sharding::kOptimizer ? "optimizer" : "none";
}

/// A rank's part of what is cut into as many equal ones as there are ranks.
struct Shard {
  int64_t rank = 0;
  int64_t count = 1;

  bool is_all() const { return count == 1; }
};

/// Elements [first, first + count) of a tensor, flattened.
struct Piece {
  int64_t first = 0;
  int64_t count = 0;
};

}  // namespace vlmtrain::engine
