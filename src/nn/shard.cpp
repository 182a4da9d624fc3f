#include "vlmtrain/nn/shard.h"

#include <algorithm>

namespace vlmtrain::nn {

ElementRange intersect_shard(int64_t offset, int64_t elements, int64_t shard_elements, const Shard& shard) {
  const int64_t first = std::max(shard.rank * shard_elements, offset);
  const int64_t end = std::min((shard.rank + 1) * shard_elements, offset + elements);
  return end > first ? ElementRange{.first = first - offset, .count = end - first} : ElementRange{};
}

}  // namespace vlmtrain::nn
