#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "vlmtrain/engine/gradients/consensus.h"
#include "vlmtrain/engine/gradients/gradient_layout.h"
#include "vlmtrain/nn/weights/parameters.h"

namespace vlmtrain::engine {

/// The all-gather of updated weights with sharded optimizer state (ZeRO stage 1). Trained weights
/// are in flat buckets with the layout of the gradient buckets, so one call per bucket gathers the
/// parts of all ranks.
///
/// The all-gather overlaps with the next forward pass: a block waits for its own weights just
/// before it reads them. Buckets are gathered in the order in which a forward pass reads them:
/// first parameters outside of blocks, such as embeddings, then block by block. Not thread-safe.
class ShardedOptimizerSync {
 public:
  /// Moves the trained weights of `store` into buckets, so that their tensors become views of the
  /// buckets. Registers itself with `store`, and its destructor unregisters it. Temporarily needs
  /// the memory of one more bucket. `layout` is that of the gradient buckets. REQUIRES: all weights
  /// have one dtype; `store` outlives this object.
  ShardedOptimizerSync(nn::ParameterStore& store, const GradientLayout& layout);
  ~ShardedOptimizerSync();
  ShardedOptimizerSync(const ShardedOptimizerSync&) = delete;
  ShardedOptimizerSync& operator=(const ShardedOptimizerSync&) = delete;

  /// Starts to gather the updated weights, after the previous gather is complete. All ranks call
  /// it. `consensus` must live until wait_for_weights().
  void all_gather_weights(const Consensus& consensus);
  /// Waits until all weights are gathered. Does nothing if they are.
  void wait_for_weights();

 private:
  void wait_for_parameters(size_t first_parameter, size_t end_parameter);

  nn::ParameterStore& store_;
  std::vector<at::Tensor> buckets_;           // in the order of the gather
  std::vector<size_t> num_required_buckets_;  // per parameter of the store: number of buckets that must have arrived
  const Consensus* consensus_ = nullptr;
  std::vector<AllGatherHandle> all_gather_handles_;  // of the last all_gather_weights(), by bucket
  size_t num_gathered_buckets_ = 0;
};

}  // namespace vlmtrain::engine
