#include "vlmtrain/engine/training.h"

namespace vlmtrain::engine {

void Training::connect(const Consensus& consensus) {
  if (sharded_blocks) sharded_blocks->connect(consensus);
  if (gradient_buckets.shard().covers_all()) {
    gradient_buckets.register_comm_hook([&consensus](const at::Tensor& bucket) { consensus.all_reduce_sum(bucket); });
  } else {
    gradient_buckets.register_comm_hook([&consensus](const at::Tensor& bucket) { consensus.reduce_scatter(bucket); },
                                        [&consensus] { consensus.wait_for_reductions(); });
  }
}

}  // namespace vlmtrain::engine
