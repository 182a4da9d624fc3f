#include "vlmtrain/nn/shard.h"

#include <algorithm>

namespace vlmtrain::nn {

Piece piece_in_shard(int64_t place, int64_t elements, int64_t part, const Shard& shard) {
  const int64_t first = std::max(shard.rank * part, place);
  const int64_t end = std::min((shard.rank + 1) * part, place + elements);
  return end > first ? Piece{.first = first - place, .count = end - first} : Piece{};
}

}  // namespace vlmtrain::nn
