#pragma once

#include <cstdint>

namespace vlmtrain::nn {

/// The alignment, in elements, of tensors and shards of trained weights. Compressed optimizer
/// states have one scale per 256 elements (compressed_states.h), so the elements of a scale never belong to
/// two ranks.
inline constexpr int64_t kShardAlignment = 256;

/// One of `count` equal parts of sharded data, owned by `rank`, which is in [0, count).
struct Shard {
  int64_t rank = 0;
  int64_t count = 1;

  /// Returns whether the data is not sharded.
  bool covers_all() const { return count == 1; }
};

/// Elements [first, first + count) of a flattened tensor.
struct ElementRange {
  int64_t first = 0;
  int64_t count = 0;
};

/// Returns the part of a tensor that is in the shard, relative to the tensor. If the shard has no
/// element of the tensor, the count is 0. The tensor has `elements` elements at `offset` of the
/// data; each shard of the data has `shard_elements` elements.
ElementRange intersect_shard(int64_t offset, int64_t elements, int64_t shard_elements, const Shard& shard);

}  // namespace vlmtrain::nn
