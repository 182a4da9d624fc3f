#include "vlmtrain/engine/training.h"

namespace vlmtrain::engine {

void Training::connect(const Consensus& consensus) {
  if (blocks) blocks->connect(consensus);
  if (sums.shard().is_all()) {
    sums.reduce_with([&consensus](const at::Tensor& bucket) { consensus.add_up(bucket); });
  } else {
    sums.reduce_with([&consensus](const at::Tensor& bucket) { consensus.add_up_parts(bucket); },
                     [&consensus] { consensus.finish(); });
  }
}

}  // namespace vlmtrain::engine
