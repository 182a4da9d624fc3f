#include "vlmtrain/engine/gradients/rank_sync.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_zero.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <map>
#include <numeric>
#include <utility>

#include "vlmtrain/base/error.h"
#include "vlmtrain/memory/memory_tag.h"

namespace vlmtrain::engine {

GradientReducer::GradientReducer(GradientBuckets& buckets)
    : buckets_(buckets),
      is_in_last_micro_batch_(buckets.size(), false),
      num_pending_gradients_(buckets.layout().buckets().size(), 0),
      has_block_sum_(buckets.layout().buckets().size(), false) {
  const memory::ComponentScope gradients_scope(memory::Component::kGradients);
  int64_t largest = 0;
  for (const auto& bucket : layout().buckets()) {
    if (bucket.block != nullptr) largest = std::max(largest, bucket.elements);
  }
  for (auto& buffer : block_buffers_) buffer = at::zeros({largest}, buckets.options());
  buckets_.set_observer(this);
}

GradientReducer::~GradientReducer() {
  buckets_.set_observer(nullptr);
}

void GradientReducer::register_comm_hook(CommHook hook, std::function<void()> wait_hook) {
  comm_hook_ = std::move(hook);
  wait_hook_ = std::move(wait_hook);
}

void GradientReducer::begin_last_micro_batch() {
  // With sharded blocks, these reductions would be interleaved with the blocks' reductions in a
  // different order on each rank, so they wait for flush().
  if (!comm_hook_ || buckets_.num_gradient_groups() > 1 || layout().has_sharded_blocks()) return;
  is_last_micro_batch_ = true;
  is_in_last_micro_batch_.assign(buckets_.size(), false);
  std::ranges::transform(layout().buckets(), num_pending_gradients_.begin(),
                         [](const Bucket& bucket) { return bucket.parameter_indices.size(); });
}

void GradientReducer::check_accepts_gradient(size_t i) const {
  const bool is_complete = is_last_micro_batch_ && is_in_last_micro_batch_[i];
  VLMTRAIN_CHECK(layout().bucket_index(i) >= num_reduced_buckets_ && !is_complete,
                 "{} got a gradient after its bucket was reduced", layout().name(i));
}

void GradientReducer::on_gradient_complete(size_t i) {
  if (!is_last_micro_batch_) return;
  is_in_last_micro_batch_[i] = true;
  --num_pending_gradients_[layout().bucket_index(i)];
  while (num_reduced_buckets_ < num_pending_gradients_.size() && num_pending_gradients_[num_reduced_buckets_] == 0)
    comm_hook_(buckets_.fill_missing_gradients(num_reduced_buckets_++, /*group=*/0));
}

void GradientReducer::flush() {
  is_last_micro_batch_ = false;
  finish_block_reduction();
  if (!comm_hook_) return;
  const at::NoGradGuard no_gradients;
  const size_t num_buckets = layout().buckets().size();
  for (int64_t group = 0; group < buckets_.num_gradient_groups(); ++group) {
    for (size_t bucket = num_reduced_buckets_; bucket < num_buckets; ++bucket) {
      if (layout().buckets()[bucket].block == nullptr) comm_hook_(buckets_.fill_missing_gradients(bucket, group));
    }
  }
  num_reduced_buckets_ = num_buckets;
}

void GradientReducer::on_reset() {
  has_block_sum_.assign(has_block_sum_.size(), false);
  filled_parameters_.clear();
  filling_bucket_.reset();
  reducing_bucket_.reset();
  is_last_micro_batch_ = false;
  num_reduced_buckets_ = 0;
}

void GradientReducer::mark_gradients_of_all_ranks(const Consensus& consensus) {
  const auto num_parameters = static_cast<int64_t>(buckets_.size());
  std::vector<int64_t> indices;  // group · num_parameters + i, ascending
  for (int64_t group = 0; group < buckets_.num_gradient_groups(); ++group) {
    for (int64_t i = 0; i < num_parameters; ++i) {
      if (buckets_.has_gradient(static_cast<size_t>(i), group)) indices.push_back(group * num_parameters + i);
    }
  }
  for (const int64_t index : consensus.union_over_ranks(std::move(indices))) {
    const auto [group, i] = std::div(index, num_parameters);
    buckets_.mark_gradient(static_cast<size_t>(i), group);
  }
}

std::vector<at::Tensor> GradientReducer::get_local_shards() const {
  std::vector<at::Tensor> block_shards, other_shards;
  for (size_t bucket = 0; bucket < layout().buckets().size(); ++bucket) {
    if (layout().buckets()[bucket].block == nullptr) {
      other_shards.push_back(buckets_.get_local_shard(bucket));
    } else if (has_block_sum_[bucket]) {
      block_shards.push_back(buckets_.get_local_shard(bucket));
    }
  }
  block_shards.insert(block_shards.end(), other_shards.begin(), other_shards.end());
  return block_shards;
}

void GradientReducer::add_block_gradient(size_t i, const at::Tensor& gradient) {
  const size_t bucket = layout().bucket_index(i);
  VLMTRAIN_CHECK(!filling_bucket_ || filling_bucket_ == bucket,
                 "{} got a gradient while another block's bucket is being filled", layout().name(i));
  filling_bucket_ = bucket;
  block_buffers_[filling_buffer_index_].narrow(0, layout().offset(i), layout().elements(i)).copy_(gradient.view(-1));
  filled_parameters_.push_back(i);
}

void GradientReducer::reduce_block(const nn::ShardedBlock& block) {
  const auto it = std::ranges::find(layout().buckets(), &block, &Bucket::block);
  if (it == layout().buckets().end()) return;
  const at::NoGradGuard no_gradients;
  const auto bucket = static_cast<size_t>(it - layout().buckets().begin());
  VLMTRAIN_CHECK(!filling_bucket_ || filling_bucket_ == bucket, "the filled bucket belongs to another block");
  const at::Tensor full_bucket = block_buffers_[filling_buffer_index_].narrow(0, 0, it->elements);
  zero_unfilled_gradients(*it, full_bucket);
  filled_parameters_.clear();
  filling_bucket_.reset();
  finish_block_reduction();
  if (comm_hook_) comm_hook_(full_bucket);
  reducing_bucket_ = bucket;
  filling_buffer_index_ = 1 - filling_buffer_index_;
}

/// Zeroes the parts of `full_bucket` without a gradient. Padding between tensors is never read, so
/// it is not zeroed.
void GradientReducer::zero_unfilled_gradients(const Bucket& bucket, const at::Tensor& full_bucket) const {
  if (filled_parameters_.empty()) {
    full_bucket.zero_();
    return;
  }
  std::vector<at::Tensor> sums_without_gradient;
  for (const size_t i : bucket.parameter_indices) {
    if (std::ranges::find(filled_parameters_, i) != filled_parameters_.end()) continue;
    sums_without_gradient.push_back(full_bucket.narrow(0, layout().offset(i), layout().elements(i)));
  }
  if (!sums_without_gradient.empty()) at::_foreach_zero_(sums_without_gradient);
}

void GradientReducer::finish_block_reduction() {
  if (!reducing_bucket_) return;
  const at::NoGradGuard no_gradients;
  if (wait_hook_) wait_hook_();
  const size_t bucket = *reducing_bucket_;
  const int64_t part_elements = layout().get_part_elements(bucket);
  const at::Tensor reduced_part =
      block_buffers_[1 - filling_buffer_index_].narrow(0, layout().shard().rank * part_elements, part_elements);
  const at::Tensor local_shard = buckets_.get_local_shard(bucket);
  if (has_block_sum_[bucket]) {
    local_shard.add_(reduced_part);
  } else {
    local_shard.copy_(reduced_part);
    has_block_sum_[bucket] = true;
  }
  reducing_bucket_.reset();
}

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
