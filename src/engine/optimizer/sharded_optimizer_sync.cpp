#include "vlmtrain/engine/optimizer/sharded_optimizer_sync.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>

#include "vlmtrain/base/error.h"
#include "vlmtrain/memory/memory_tag.h"

namespace vlmtrain::engine {

ShardedOptimizerSync::ShardedOptimizerSync(nn::ParameterStore& store, const GradientLayout& layout)
    : store_(store), num_required_buckets_(store.all().size(), 0) {
  const memory::ComponentScope weights(memory::Component::kWeights);
  const at::NoGradGuard no_gradients;
  std::vector<std::vector<size_t>> bucket_parameter_indices(
      layout.get_non_block_bucket_sizes().size());  // per gradient bucket: indices into the store
  std::vector<size_t> gradient_indices(
      store.all().size());  // per parameter of the store: index in the gradient buckets
  size_t gradient_index = 0;
  for (size_t i = 0; i < store.all().size(); ++i) {
    const nn::Parameter& parameter = store.all()[i];
    if (!parameter.tensor.requires_grad()) continue;
    if (layout.is_in_sharded_block(gradient_index)) {
      ++gradient_index;
      continue;
    }
    VLMTRAIN_CHECK(parameter.tensor.scalar_type() == store.options().dtype().toScalarType(),
                   "{} has a different data type than the other weights", parameter.name);
    gradient_indices[i] = gradient_index;
    bucket_parameter_indices[layout.bucket_index(gradient_index++)].push_back(i);
  }
  // Buckets are ordered by their first use in a forward pass. Buckets with parameters outside of
  // blocks, such as embeddings, come first.
  std::vector<size_t> bucket_order(bucket_parameter_indices.size());
  std::iota(bucket_order.begin(), bucket_order.end(), size_t{0});
  const auto find_first_use_order = [&](size_t bucket) {
    const auto get_use_order = [&](size_t i) { return store.all()[i].is_in_block ? i + 1 : 0; };
    size_t first = std::numeric_limits<size_t>::max();
    for (const size_t i : bucket_parameter_indices[bucket]) first = std::min(first, get_use_order(i));
    return first;
  };
  std::ranges::stable_sort(bucket_order, {}, find_first_use_order);
  const auto elements = layout.get_non_block_bucket_sizes();
  for (const size_t bucket : bucket_order) {
    buckets_.push_back(at::zeros({elements[bucket]}, store.options()));
    for (const size_t i : bucket_parameter_indices[bucket]) {
      at::Tensor tensor = store.all()[i].tensor;
      const at::Tensor view =
          buckets_.back().narrow(0, layout.offset(gradient_indices[i]), tensor.numel()).view(tensor.sizes());
      view.copy_(tensor);
      tensor.set_data(view);
      num_required_buckets_[i] = buckets_.size();
    }
  }
  num_gathered_buckets_ = buckets_.size();
  store_.set_forward_pre_hook([this](size_t first, size_t end) { wait_for_parameters(first, end); });
}

ShardedOptimizerSync::~ShardedOptimizerSync() {
  store_.set_forward_pre_hook({});
}

void ShardedOptimizerSync::all_gather_weights(const Consensus& consensus) {
  wait_for_weights();
  consensus_ = &consensus;
  all_gather_handles_.clear();
  for (const auto& bucket : buckets_) all_gather_handles_.push_back(consensus.all_gather_async(bucket));
  num_gathered_buckets_ = 0;
}

void ShardedOptimizerSync::wait_for_weights() {
  for (; num_gathered_buckets_ < buckets_.size(); ++num_gathered_buckets_)
    consensus_->wait_for_all_gather(all_gather_handles_[num_gathered_buckets_]);
}

void ShardedOptimizerSync::wait_for_parameters(size_t first_parameter, size_t end_parameter) {
  if (num_gathered_buckets_ == buckets_.size()) return;
  const auto max_required_buckets =
      std::max_element(num_required_buckets_.begin() + static_cast<std::ptrdiff_t>(first_parameter),
                       num_required_buckets_.begin() + static_cast<std::ptrdiff_t>(end_parameter));
  const size_t count =
      max_required_buckets == num_required_buckets_.begin() + static_cast<std::ptrdiff_t>(end_parameter)
          ? 0
          : *max_required_buckets;
  for (; num_gathered_buckets_ < count; ++num_gathered_buckets_)
    consensus_->wait_for_all_gather(all_gather_handles_[num_gathered_buckets_]);
}

}  // namespace vlmtrain::engine
