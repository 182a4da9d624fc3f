#include "vlmtrain/engine/gradients/gradient_buckets.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/_foreach_zero.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <utility>

#include "engine/gradients/host_norm.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/memory/allocation_trace.h"
#include "vlmtrain/nn/layers/gradient_sink.h"

namespace vlmtrain::engine {

namespace {

/// Alignment in elements: 512 bytes, as in the CUDA caching allocator.
constexpr int64_t kBucketAlignment = 128;
/// Maximum size of a bucket in elements: 25 MiB, PyTorch DDP's default bucket_cap_mb. Smaller
/// buckets use the network less efficiently. The reduction of a larger bucket starts later and
/// overlaps less with the backward pass.
constexpr int64_t kMaxBucketElements = int64_t{25} * 1024 * 1024 / 4;
/// Maximum elements per norm. ATen's kernels index bytes with 32 bits, so larger tensors take
/// several launches.
constexpr int64_t kMaxNormElements = int64_t{1} << 28;
/// Maximum distance in the store between parameters of one nn::MergedLinear: up to weights, biases
/// and adapter tensors of three Linears.
constexpr size_t kMaxMergedLinearSpan = 16;

}  // namespace

class GradientBuckets::GradientHook : public nn::GradientSink {
 public:
  GradientHook(GradientBuckets& buckets, size_t index) : buckets_(buckets), index_(index) {}

  at::Tensor sum() const override {
    if (buckets_.is_in_sharded_block(index_)) return {};
    buckets_.check_not_reduced(entry());
    return entry().sums[group()];
  }
  bool has_sum() const override { return entry().has_gradient[group()]; }
  void set_has_sum() override { buckets_.entries_[index_].has_gradient[group()] = true; }

  void operator()(const at::Tensor& parameter) override {
    buckets_.accumulate_gradient(index_);
    parameter.mutable_grad().reset();
  }

 private:
  size_t group() const { return static_cast<size_t>(buckets_.current_gradient_group_); }
  const ParameterEntry& entry() const { return buckets_.entries_[index_]; }

  GradientBuckets& buckets_;
  size_t index_;
};

GradientBuckets::GradientBuckets(const nn::ParameterStore& store, int64_t groups, Shard shard)
    : shard_(shard), has_sharded_blocks_(!store.shard().covers_all()) {
  const memory::ComponentScope gradients_scope(memory::Component::kGradients);
  VLMTRAIN_CHECK(groups >= 1, "the number of gradient groups is {}; must be at least 1", groups);
  VLMTRAIN_CHECK(shard.covers_all() || groups == 1, "{} groups of gradients cannot be sharded", groups);
  VLMTRAIN_CHECK(shard.rank >= 0 && shard.rank < shard.count, "rank {} of {} ranks is out of range", shard.rank,
                 shard.count);
  for (const auto& parameter : store.all()) {
    if (!parameter.tensor.requires_grad()) continue;
    entries_.push_back({.name = parameter.name, .parameter = parameter.tensor});
    if (parameter.has_sharded_gradient()) {
      entries_.back().block = parameter.sharded_block.get();
      entries_.back().offset = parameter.sharded_block->section_offset(parameter.index_in_block);
    }
  }
  lay_out_buckets();
  const int64_t elements = buckets_.empty() ? 0 : buckets_.back().first + buckets_.back().elements;
  flat_sums_ = at::zeros({groups, elements}, store.options().dtype(at::kFloat));
  lay_out_block_buckets(store);
  for (const auto& bucket : buckets_) {
    for (const size_t i : bucket.entries) {
      ParameterEntry& entry = entries_[i];
      if (bucket.block != nullptr) {
        entry.has_gradient.assign(1, false);
        continue;
      }
      const int64_t first = bucket.first + entry.offset, count = entry.parameter.numel();
      for (int64_t group = 0; group < groups; ++group) {
        entry.sums.push_back(flat_sums_.select(0, group).narrow(0, first, count).view(entry.parameter.sizes()));
      }
      entry.has_gradient.assign(static_cast<size_t>(groups), false);
    }
  }
  for (size_t i = 0; i < entries_.size(); ++i) {
    VLMTRAIN_CHECK(torch::autograd::impl::post_acc_grad_hooks(entries_[i].parameter) == nullptr,
                   "{} belongs to other gradient buckets already", entries_[i].name);
    torch::autograd::impl::set_post_acc_grad_hooks(entries_[i].parameter, std::make_unique<GradientHook>(*this, i));
  }
}

GradientBuckets::~GradientBuckets() {
  for (const auto& entry : entries_) torch::autograd::impl::set_post_acc_grad_hooks(entry.parameter, nullptr);
}

int64_t GradientBuckets::round_up_to_alignment(int64_t elements) const {
  const int64_t alignment = shard_.covers_all() ? kBucketAlignment : kShardAlignment;
  return (elements + alignment - 1) / alignment * alignment;
}

void GradientBuckets::lay_out_buckets() {
  std::vector<bool> has_bucket(entries_.size(), false);
  for (size_t i = entries_.size(); i-- > 0;) {
    if (has_bucket[i] || entries_[i].block != nullptr) continue;
    // Adjacent weights (nn::MergedLinear) get adjacent sums, so they remain adjacent when
    // ShardedOptimizerSync moves them to the same layout.
    std::vector<size_t> adjacent_entries;
    int64_t count = 0;
    for (size_t other = i - std::min(i, kMaxMergedLinearSpan); other <= i; ++other) {
      if (has_bucket[other] || entries_[other].block != nullptr) continue;
      if (!entries_[other].parameter.is_alias_of(entries_[i].parameter)) continue;
      adjacent_entries.push_back(other);
      count += round_up_to_alignment(entries_[other].parameter.numel());
    }
    if (buckets_.empty() || buckets_.back().elements + count > kMaxBucketElements) buckets_.emplace_back();
    for (const size_t member : adjacent_entries) {
      ParameterEntry& entry = entries_[member];
      has_bucket[member] = true;
      entry.bucket_index = buckets_.size() - 1;
      entry.offset = buckets_.back().elements;
      buckets_.back().elements += round_up_to_alignment(entry.parameter.numel());
      buckets_.back().entries.push_back(member);
    }
  }
  int64_t first = 0;
  for (auto& bucket : buckets_) {
    bucket.first = first;
    bucket.elements = round_up_to_alignment((bucket.elements + shard_.count - 1) / shard_.count) * shard_.count;
    first += bucket.elements;
  }
}

ElementRange GradientBuckets::get_local_range(size_t i) const {
  const ParameterEntry& entry = entries_[i];
  const int64_t shard_elements = buckets_[entry.bucket_index].elements / shard_.count;
  return nn::intersect_shard(entry.offset, entry.parameter.numel(), shard_elements, shard_);
}

std::vector<at::Tensor> GradientBuckets::get_non_block_shards() const {
  std::vector<at::Tensor> shards;
  for (const auto& bucket : buckets_) {
    if (bucket.block == nullptr) shards.push_back(get_local_shard(bucket));
  }
  return shards;
}

std::vector<int64_t> GradientBuckets::get_non_block_bucket_sizes() const {
  std::vector<int64_t> elements;
  for (const auto& bucket : buckets_) {
    if (bucket.block == nullptr) elements.push_back(bucket.elements);
  }
  return elements;
}

void GradientBuckets::set_gradient_group(int64_t group) {
  VLMTRAIN_CHECK(group >= 0 && group < num_gradient_groups(), "group {} is out of range, number of groups: {}", group,
                 num_gradient_groups());
  current_gradient_group_ = group;
}

void GradientBuckets::check_not_reduced(const ParameterEntry& entry) const {
  VLMTRAIN_CHECK(entry.bucket_index >= num_reduced_buckets_ && !(is_last_micro_batch_ && entry.is_in_last_micro_batch),
                 "{} got a gradient after its bucket was reduced", entry.name);
}

void GradientBuckets::accumulate_gradient(size_t i) {
  ParameterEntry& entry = entries_[i];
  if (entry.block != nullptr) {
    if (entry.parameter.grad().defined()) accumulate_block_gradient(i);
    return;
  }
  const auto group = static_cast<size_t>(current_gradient_group_);
  check_not_reduced(entry);
  // The gradient is undefined if a backward function wrote all of it into the sum. The hook then
  // only marks it as complete.
  if (const at::Tensor& gradient = entry.parameter.grad(); gradient.defined()) {
    if (entry.has_gradient[group]) {
      entry.sums[group].add_(gradient);
    } else {
      entry.sums[group].copy_(gradient);
      entry.has_gradient[group] = true;
    }
  }
  if (!is_last_micro_batch_) return;
  entry.is_in_last_micro_batch = true;
  --buckets_[entry.bucket_index].num_pending_gradients;
  while (num_reduced_buckets_ < buckets_.size() && buckets_[num_reduced_buckets_].num_pending_gradients == 0)
    reduce_bucket(num_reduced_buckets_++, current_gradient_group_);
}

bool GradientBuckets::has_gradient(size_t i, int64_t group) const {
  return entries_[i].has_gradient[static_cast<size_t>(group)];
}

at::Tensor GradientBuckets::sum(size_t i, int64_t group) const {
  VLMTRAIN_CHECK(has_gradient(i, group), "{} has no gradient", entries_[i].name);
  VLMTRAIN_CHECK(entries_[i].block == nullptr, "the gradient of {} is sharded", entries_[i].name);
  return entries_[i].sums[static_cast<size_t>(group)];
}

at::Tensor GradientBuckets::get_local_gradient_sum(size_t i) const {
  const ParameterEntry& entry = entries_[i];
  const auto [first, count] = get_local_range(i);
  if (entry.block == nullptr) return sum(i).view(-1).narrow(0, first, count);
  VLMTRAIN_CHECK(has_gradient(i), "{} has no gradient", entry.name);
  const Bucket& bucket = buckets_[entry.bucket_index];
  const int64_t begin = entry.offset + first - shard_.rank * (bucket.elements / shard_.count);
  return get_local_shard(bucket).narrow(0, count == 0 ? 0 : begin, count);
}

at::Tensor GradientBuckets::sum(const std::string& name) const {
  for (size_t i = 0; i < entries_.size(); ++i) {
    if (entries_[i].name == name) return has_gradient(i) ? sum(i) : at::Tensor();
  }
  throw InternalError(fmt::format("{} is not trained", name));
}

at::Tensor GradientBuckets::compute_local_norm() const {
  const at::NoGradGuard no_gradients;
  if (flat_sums_.is_cpu()) return compute_host_norm(collect_sums());
  const std::vector<at::Tensor> norms =
      flat_sums_.is_cuda() && has_all_gradients() ? compute_flat_norms() : compute_tensor_norms();
  if (norms.empty()) return at::zeros({}, flat_sums_.options());
  return at::linalg_vector_norm(at::stack(norms), 2);
}

/// Returns whether flat_sums_ contains all sums of this step, and all its other elements are zero
/// (padding).
bool GradientBuckets::has_all_gradients() const {
  return shard_.covers_all() && !has_sharded_blocks_ && !entries_.empty() &&
         std::ranges::all_of(entries_, [](const ParameterEntry& entry) { return entry.has_gradient.front(); });
}

/// Returns the norms of chunks of flat_sums_, with one launch per chunk. at::_foreach_norm would
/// take one launch per million elements.
std::vector<at::Tensor> GradientBuckets::compute_flat_norms() const {
  const at::Tensor all = flat_sums_.select(0, 0);
  std::vector<at::Tensor> norms;
  for (const at::Tensor& chunk : all.split(kMaxNormElements)) norms.push_back(at::linalg_vector_norm(chunk, 2));
  return norms;
}

std::vector<at::Tensor> GradientBuckets::compute_tensor_norms() const {
  const auto sums = collect_sums();
  return sums.empty() ? sums : at::_foreach_norm(sums, 2);
}

/// Returns all sums of group 0, or this rank's parts of them if they are sharded.
std::vector<at::Tensor> GradientBuckets::collect_sums() const {
  std::vector<at::Tensor> sums;
  for (size_t i = 0; i < size(); ++i) {
    if (!has_gradient(i)) continue;
    if (shard_.covers_all()) {
      sums.push_back(sum(i));
    } else if (get_local_range(i).count > 0) {
      sums.push_back(get_local_gradient_sum(i));
    }
  }
  return sums;
}

void GradientBuckets::zero_missing_gradients(const Bucket& bucket, int64_t group) const {
  std::vector<at::Tensor> sums_without_gradient;
  for (const size_t i : bucket.entries) {
    if (!has_gradient(i, group)) sums_without_gradient.push_back(entries_[i].sums[static_cast<size_t>(group)]);
  }
  if (!sums_without_gradient.empty()) at::_foreach_zero_(sums_without_gradient);
}

void GradientBuckets::combine_gradient_groups(const at::Tensor& factors) {
  const at::NoGradGuard no_gradients;
  for (int64_t group = 0; group < num_gradient_groups(); ++group) {
    for (const auto& bucket : buckets_) zero_missing_gradients(bucket, group);
  }
  const at::Tensor combined_sums = flat_sums_.select(0, 0);
  combined_sums.mul_(factors.select(0, 0));
  for (int64_t group = 1; group < num_gradient_groups(); ++group) {
    combined_sums.addcmul_(flat_sums_.select(0, group), factors.select(0, group));
  }
  for (auto& entry : entries_)
    entry.has_gradient[0] = std::ranges::find(entry.has_gradient, true) != entry.has_gradient.end();
}

void GradientBuckets::reset() {
  for (auto& entry : entries_) {
    entry.parameter.mutable_grad().reset();
    std::fill(entry.has_gradient.begin(), entry.has_gradient.end(), false);
  }
  for (auto& bucket : buckets_) bucket.has_sum = false;
  filled_entry_indices_.clear();
  filling_bucket_index_ = reducing_bucket_index_ = kNoIndex;
  is_last_micro_batch_ = false;
  num_reduced_buckets_ = 0;
}

void GradientBuckets::register_comm_hook(CommHook hook, std::function<void()> wait_hook) {
  comm_hook_ = std::move(hook);
  wait_hook_ = std::move(wait_hook);
}

void GradientBuckets::begin_last_micro_batch() {
  // With sharded blocks, these reductions would be interleaved with the blocks' reductions in a
  // different order on each rank, so they wait for flush().
  if (!comm_hook_ || num_gradient_groups() > 1 || has_sharded_blocks_) return;
  is_last_micro_batch_ = true;
  for (auto& entry : entries_) entry.is_in_last_micro_batch = false;
  for (auto& bucket : buckets_) bucket.num_pending_gradients = bucket.entries.size();
}

void GradientBuckets::flush() {
  is_last_micro_batch_ = false;
  finish_block_reduction();
  if (!comm_hook_) return;
  const at::NoGradGuard no_gradients;
  for (int64_t group = 0; group < num_gradient_groups(); ++group) {
    for (size_t bucket = num_reduced_buckets_; bucket < buckets_.size(); ++bucket) {
      if (buckets_[bucket].block == nullptr) reduce_bucket(bucket, group);
    }
  }
  num_reduced_buckets_ = buckets_.size();
}

std::vector<int64_t> GradientBuckets::find_sum_indices_with_gradient() const {
  std::vector<int64_t> indices;
  for (int64_t group = 0; group < num_gradient_groups(); ++group) {
    for (size_t i = 0; i < size(); ++i) {
      if (has_gradient(i, group)) indices.push_back(group * std::ssize(entries_) + static_cast<int64_t>(i));
    }
  }
  return indices;
}

void GradientBuckets::mark_sums_with_gradient(const std::vector<int64_t>& indices) {
  for (const int64_t index : indices) {
    const auto [group, i] = std::div(index, std::ssize(entries_));
    entries_[static_cast<size_t>(i)].has_gradient.at(static_cast<size_t>(group)) = true;
  }
}

void GradientBuckets::reduce_bucket(size_t bucket, int64_t group) {
  zero_missing_gradients(buckets_[bucket], group);
  comm_hook_(flat_sums_.select(0, group).narrow(0, buckets_[bucket].first, buckets_[bucket].elements));
}

}  // namespace vlmtrain::engine
