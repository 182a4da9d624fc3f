#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "vlmtrain/engine/consensus.h"
#include "vlmtrain/engine/gradients/gradient_buckets.h"
#include "vlmtrain/nn/weights/parameters.h"

namespace vlmtrain::engine {

/// The weights that are trained, of which each rank moves a part: in flat buckets of the places of the gradient sums,
/// so that one call for a bucket brings all ranks' parts together.
///
/// That goes on while the next forward pass begins: a block waits for its own weights just before it reads them
/// (nn::ParameterStore::use). Buckets travel in the order in which a forward pass reads them: what belongs to no block
/// first, as the embeddings, then block after block.
class ShardedOptimizerSync {
 public:
  /// Takes the weights of `store`, which has to outlive this, into the buckets: its tensors are views of them from here
  /// on. Takes, on the way, the memory of a bucket beside what is there. REQUIRES: they are of one type.
  ShardedOptimizerSync(nn::ParameterStore& store, const GradientBuckets& buckets);
  ~ShardedOptimizerSync();
  ShardedOptimizerSync(const ShardedOptimizerSync&) = delete;
  ShardedOptimizerSync& operator=(const ShardedOptimizerSync&) = delete;

  /// This rank's parts have changed. `consensus` has to live until all is there.
  void all_gather_weights(const Consensus& consensus);
  /// Waits until all is there.
  void wait_for_weights();

 private:
  void wait_for_parameters(size_t first_parameter, size_t end_parameter);

  nn::ParameterStore& store_;
  std::vector<at::Tensor> buckets_;       // in the order in which they travel
  std::vector<size_t> required_buckets_;  // by parameter of the store: so many of them have to be there
  const Consensus* consensus_ = nullptr;
  std::vector<AllGatherHandle> handles_;  // of the last all_gather_weights()
  size_t num_gathered_ = 0;
};

}  // namespace vlmtrain::engine
