#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "vlmtrain/engine/consensus.h"
#include "vlmtrain/engine/gradient_sums.h"
#include "vlmtrain/nn/parameters.h"

namespace vlmtrain::engine {

/// The weights that are trained, of which each rank moves a part: in flat buckets of the places of the gradient sums,
/// so that one call for a bucket brings all ranks' parts together.
///
/// That goes on while the next forward pass begins: a block waits for its own weights just before it reads them
/// (nn::ParameterStore::use). Buckets travel in the order in which a forward pass reads them: what belongs to no block
/// first, as the embeddings, then block after block.
class SharedWeights {
 public:
  /// Takes the weights of `store`, which has to outlive this, into the buckets: its tensors are views of them from here
  /// on. Takes, on the way, the memory of a bucket beside what is there. REQUIRES: they are of one type.
  SharedWeights(nn::ParameterStore& store, const GradientSums& sums);
  ~SharedWeights();
  SharedWeights(const SharedWeights&) = delete;
  SharedWeights& operator=(const SharedWeights&) = delete;

  /// This rank's parts have changed. `consensus` has to live until all is there.
  void gather(const Consensus& consensus);
  /// Waits until all is there.
  void finish();

 private:
  void wait_for(size_t first_parameter, size_t end_parameter);

  nn::ParameterStore& store_;
  std::vector<at::Tensor> buckets_;  // in the order in which they travel
  std::vector<size_t> behind_;       // by parameter of the store: so many of them have to be there
  const Consensus* consensus_ = nullptr;
  std::vector<GatherTicket> tickets_;  // of the last gather()
  size_t arrived_ = 0;
};

}  // namespace vlmtrain::engine
