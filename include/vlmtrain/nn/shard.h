#pragma once

#include <cstdint>

namespace vlmtrain::nn {

/// Elements: tensors and parts of what is shared begin where a block of so many does. Compressed optimizer states have
/// a scale for as many (engine/moments.h), so that none belongs to two ranks.
inline constexpr int64_t kShardAlignment = 256;

/// A rank's part of what is cut into as many equal ones as there are ranks.
struct Shard {
  int64_t rank = 0;
  int64_t count = 1;

  bool covers_all() const { return count == 1; }
};

/// Elements [first, first + count) of a tensor, flattened.
struct ElementRange {
  int64_t first = 0;
  int64_t count = 0;
};

/// What of `elements` that begin at `offset` of something cut into `shard.count` parts of `shard_elements` each is in
/// the shard's; of no elements where all are in others.
ElementRange intersect_shard(int64_t offset, int64_t elements, int64_t shard_elements, const Shard& shard);

}  // namespace vlmtrain::nn
