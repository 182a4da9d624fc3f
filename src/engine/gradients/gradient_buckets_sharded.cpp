// Members of GradientBuckets for the buckets of sharded blocks.

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_zero.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>

#include "vlmtrain/base/error.h"
#include "vlmtrain/engine/gradients/gradient_buckets.h"

namespace vlmtrain::engine {

void GradientBuckets::lay_out_block_buckets(const nn::ParameterStore& store) {
  int64_t first = 0, largest = 0;
  for (size_t i = entries_.size(); i-- > 0;) {
    ParameterEntry& entry = entries_[i];
    if (entry.block == nullptr) continue;
    if (buckets_.empty() || buckets_.back().block != entry.block) {
      const int64_t elements = entry.block->elements(nn::ShardedBlock::SectionKind::kTrained);
      buckets_.push_back({.first = first, .elements = elements, .block = entry.block});
      first += elements / shard_.count;
      largest = std::max(largest, elements);
    }
    entry.bucket_index = buckets_.size() - 1;
    buckets_.back().entries.push_back(i);
  }
  const auto options = store.options().dtype(at::kFloat);
  block_shards_ = at::zeros({first}, options);
  for (auto& buffer : block_buffers_) buffer = at::zeros({largest}, options);
}

at::Tensor GradientBuckets::get_local_shard(const Bucket& bucket) const {
  const int64_t shard_elements = bucket.elements / shard_.count;
  if (bucket.block != nullptr) return block_shards_.narrow(0, bucket.first, shard_elements);
  return flat_sums_.select(0, 0).narrow(0, bucket.first + shard_.rank * shard_elements, shard_elements);
}

std::vector<at::Tensor> GradientBuckets::get_block_shards() const {
  std::vector<at::Tensor> shards;
  for (const auto& bucket : buckets_) {
    if (bucket.block != nullptr && bucket.has_sum) shards.push_back(get_local_shard(bucket));
  }
  return shards;
}

void GradientBuckets::accumulate_block_gradient(size_t i) {
  ParameterEntry& entry = entries_[i];
  VLMTRAIN_CHECK(filling_bucket_index_ == kNoIndex || filling_bucket_index_ == entry.bucket_index,
                 "{} got a gradient while another block's bucket is being filled", entry.name);
  filling_bucket_index_ = entry.bucket_index;
  block_buffers_[filling_buffer_index_]
      .narrow(0, entry.offset, entry.parameter.numel())
      .copy_(entry.parameter.grad().view(-1));
  filled_entry_indices_.push_back(i);
  entry.has_gradient[0] = true;
}

void GradientBuckets::reduce_block(const nn::ShardedBlock& block) {
  const auto it = std::ranges::find(buckets_, &block, &Bucket::block);
  if (it == buckets_.end()) return;
  const at::NoGradGuard no_gradients;
  const auto index = static_cast<size_t>(it - buckets_.begin());
  VLMTRAIN_CHECK(filling_bucket_index_ == kNoIndex || filling_bucket_index_ == index,
                 "the filled bucket belongs to another block");
  const at::Tensor full_bucket = block_buffers_[filling_buffer_index_].narrow(0, 0, it->elements);
  zero_unfilled_gradients(*it, full_bucket);
  filled_entry_indices_.clear();
  filling_bucket_index_ = kNoIndex;
  finish_block_reduction();
  if (comm_hook_) comm_hook_(full_bucket);
  reducing_bucket_index_ = index;
  filling_buffer_index_ = 1 - filling_buffer_index_;
}

/// Zeroes the parts of `full_bucket` without a gradient. Padding between tensors is never read, so
/// it is not zeroed.
void GradientBuckets::zero_unfilled_gradients(const Bucket& bucket, const at::Tensor& full_bucket) const {
  if (filled_entry_indices_.empty()) {
    full_bucket.zero_();
    return;
  }
  std::vector<at::Tensor> sums_without_gradient;
  for (const size_t i : bucket.entries) {
    if (std::ranges::find(filled_entry_indices_, i) != filled_entry_indices_.end()) continue;
    sums_without_gradient.push_back(full_bucket.narrow(0, entries_[i].offset, entries_[i].parameter.numel()));
  }
  if (!sums_without_gradient.empty()) at::_foreach_zero_(sums_without_gradient);
}

void GradientBuckets::finish_block_reduction() {
  if (reducing_bucket_index_ == kNoIndex) return;
  const at::NoGradGuard no_gradients;
  if (wait_hook_) wait_hook_();
  Bucket& bucket = buckets_[reducing_bucket_index_];
  const int64_t shard_elements = bucket.elements / shard_.count;
  const at::Tensor local_shard =
      block_buffers_[1 - filling_buffer_index_].narrow(0, shard_.rank * shard_elements, shard_elements);
  if (bucket.has_sum) {
    get_local_shard(bucket).add_(local_shard);
  } else {
    get_local_shard(bucket).copy_(local_shard);
    bucket.has_sum = true;
  }
  reducing_bucket_index_ = kNoIndex;
}

}  // namespace vlmtrain::engine
