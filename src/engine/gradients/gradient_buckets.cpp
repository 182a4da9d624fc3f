#include "vlmtrain/engine/gradients/gradient_buckets.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/_foreach_zero.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <memory>
#include <numeric>
#include <vector>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/memory/memory_tag.h"
#include "vlmtrain/nn/layers/matmul.h"

namespace vlmtrain::engine {

namespace {

/// Elements per chunk, 256 KiB of fp32; no measurement of other sizes is recorded. Another value
/// changes the rounding of norms.
constexpr int64_t kNormChunkElements = 65'536;

double compute_sum_of_squares(const float* values, int64_t count) {
  // Independent sums, so that compilers vectorize the loop. Their number determines the rounding,
  // so it is the same on all machines.
  constexpr int64_t kNumLanes = 16;
  std::array<double, kNumLanes> lane_sums{};
  const int64_t num_vectorized_values = count / kNumLanes * kNumLanes;
  for (int64_t i = 0; i < num_vectorized_values; i += kNumLanes) {
    for (int64_t lane = 0; lane < kNumLanes; ++lane) {
      const double value = values[i + lane];
      lane_sums[static_cast<size_t>(lane)] += value * value;
    }
  }
  double sum = std::accumulate(lane_sums.begin(), lane_sums.end(), 0.0);
  for (int64_t i = num_vectorized_values; i < count; ++i)
    sum += static_cast<double>(values[i]) * static_cast<double>(values[i]);
  return sum;
}

/// Returns the 2-norm of all elements of fp32 tensors in host memory, an fp32 scalar; 0 without
/// tensors. Squares are summed in fp64, in chunks of fixed size whose sums are added in order. The
/// result is accurate to about the last bit of fp32, and independent of the number of threads. ATen
/// sums in fp32 sequentially per lane, and its result is 1 % too small at 100 million elements.
at::Tensor compute_host_norm(const std::vector<at::Tensor>& tensors) {
  struct Chunk {
    const float* values;
    int64_t count;
  };
  std::vector<Chunk> chunks;
  std::vector<at::Tensor> contiguous_tensors;  // keeps copies of strided tensors alive
  for (const auto& tensor : tensors) {
    VLMTRAIN_CHECK(tensor.is_cpu() && tensor.scalar_type() == at::kFloat, "expected an fp32 tensor on the CPU, got {}",
                   tensor.toString());
    const at::Tensor& contiguous_tensor = contiguous_tensors.emplace_back(tensor.contiguous());
    const auto* const values = contiguous_tensor.const_data_ptr<float>();
    for (int64_t first = 0; first < contiguous_tensor.numel(); first += kNormChunkElements) {
      chunks.push_back(
          {.values = values + first, .count = std::min(kNormChunkElements, contiguous_tensor.numel() - first)});
    }
  }
  std::vector<double> sums(chunks.size());
  at::parallel_for(0, std::ssize(chunks), /*grain_size=*/1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const auto& [values, count] = chunks[static_cast<size_t>(i)];
      sums[static_cast<size_t>(i)] = compute_sum_of_squares(values, count);
    }
  });
  at::Tensor norm = at::empty({}, at::kFloat);
  *norm.mutable_data_ptr<float>() = static_cast<float>(std::sqrt(std::accumulate(sums.begin(), sums.end(), 0.0)));
  return norm;
}

/// Maximum elements per norm. ATen's kernels index bytes with 32 bits, so larger tensors take
/// several launches.
constexpr int64_t kMaxNormElements = int64_t{1} << 28;

/// Returns whether the flat buckets of group 0 contain all sums of this step, and all their other
/// elements are zero (padding).
bool has_all_gradients(const GradientBuckets& buckets) {
  if (!buckets.shard().covers_all() || buckets.layout().has_sharded_blocks() || buckets.size() == 0) return false;
  for (size_t i = 0; i < buckets.size(); ++i) {
    if (!buckets.has_gradient(i)) return false;
  }
  return true;
}

/// Returns all sums of group 0, or this rank's parts of them if they are sharded.
std::vector<at::Tensor> collect_sums(const GradientBuckets& buckets) {
  std::vector<at::Tensor> sums;
  for (size_t i = 0; i < buckets.size(); ++i) {
    if (!buckets.has_gradient(i)) continue;
    if (buckets.shard().covers_all()) {
      sums.push_back(buckets.sum(i));
    } else if (buckets.get_local_range(i).count > 0) {
      sums.push_back(buckets.get_local_gradient_sum(i));
    }
  }
  return sums;
}

/// Returns the norms of chunks of `sums`, with one launch per chunk. at::_foreach_norm would take
/// one launch per million elements.
std::vector<at::Tensor> compute_chunk_norms(const at::Tensor& sums) {
  std::vector<at::Tensor> norms;
  for (const at::Tensor& chunk : sums.split(kMaxNormElements)) norms.push_back(at::linalg_vector_norm(chunk, 2));
  return norms;
}

std::vector<at::Tensor> compute_tensor_norms(const std::vector<at::Tensor>& sums) {
  return sums.empty() ? sums : at::_foreach_norm(sums, 2);
}

}  // namespace

class GradientBuckets::GradientHook : public nn::GradientSink {
 public:
  GradientHook(GradientBuckets& buckets, size_t index) : buckets_(buckets), index_(index) {}

  at::Tensor sum() const override {
    if (buckets_.layout_.is_in_sharded_block(index_)) return {};
    if (buckets_.observer_ != nullptr) buckets_.observer_->check_accepts_gradient(index_);
    return buckets_.entries_[index_].sums[static_cast<size_t>(group())];
  }
  bool has_sum() const override { return buckets_.has_gradient(index_, group()); }
  void set_has_sum() override { buckets_.mark_gradient(index_, group()); }

  void operator()(const at::Tensor& parameter) override {
    buckets_.accumulate_gradient(index_);
    parameter.mutable_grad().reset();
  }

 private:
  int64_t group() const { return buckets_.current_gradient_group_; }

  GradientBuckets& buckets_;
  size_t index_;
};

GradientBuckets::GradientBuckets(const nn::ParameterStore& store, int64_t groups, Shard shard,
                                 const GradientLayout::UndividedPredicate& is_undivided, Offload offload)
    : layout_(store, shard, is_undivided, offload), host_arena_(store.options().device()) {
  const memory::ComponentScope gradients_scope(memory::Component::kGradients);
  VLMTRAIN_CHECK(groups >= 1, "the number of gradient groups is {}; must be at least 1", groups);
  VLMTRAIN_CHECK(shard.covers_all() || groups == 1, "{} groups of gradients cannot be sharded", groups);
  for (const auto& parameter : store.all()) {
    if (parameter.tensor.requires_grad()) entries_.push_back({.parameter = parameter.tensor});
  }
  int64_t flat_elements = 0, host_elements = 0, block_shard_elements = 0;
  for (size_t bucket = 0; bucket < layout_.buckets().size(); ++bucket) {
    const bool is_block = layout_.buckets()[bucket].block != nullptr;
    int64_t& end = is_block                               ? block_shard_elements
                   : layout_.buckets()[bucket].is_on_host ? host_elements
                                                          : flat_elements;
    bucket_offsets_.push_back(end);
    end += is_block ? layout_.get_part_elements(bucket) : layout_.buckets()[bucket].elements;
  }
  const auto options = store.options().dtype(at::kFloat);
  flat_sums_ = at::zeros({groups, flat_elements}, options);
  if (host_elements > 0) {
    host_sums_ = host_arena_.view_on_device(
        host_arena_.allocate({groups, host_elements}, at::kFloat, keys::memory::kOffload.data()));
  }
  block_shards_ = offload == Offload::kGradients && block_shard_elements > 0
                      ? host_arena_.view_on_device(
                            host_arena_.allocate({block_shard_elements}, at::kFloat, keys::memory::kOffload.data()))
                      : at::zeros({block_shard_elements}, options);
  for (size_t i = 0; i < entries_.size(); ++i) {
    ParameterEntry& entry = entries_[i];
    entry.has_gradient.assign(static_cast<size_t>(groups), false);
    if (layout_.is_in_sharded_block(i)) continue;
    for (int64_t group = 0; group < groups; ++group) {
      entry.sums.push_back(get_bucket_sums(layout_.bucket_index(i), group)
                               .narrow(0, layout_.offset(i), layout_.elements(i))
                               .view(entry.parameter.sizes()));
    }
  }
  for (size_t i = 0; i < entries_.size(); ++i) {
    VLMTRAIN_CHECK(torch::autograd::impl::post_acc_grad_hooks(entries_[i].parameter) == nullptr,
                   "{} belongs to other gradient buckets already", layout_.name(i));
    torch::autograd::impl::set_post_acc_grad_hooks(entries_[i].parameter, std::make_unique<GradientHook>(*this, i));
  }
}

GradientBuckets::~GradientBuckets() {
  for (const auto& entry : entries_) torch::autograd::impl::set_post_acc_grad_hooks(entry.parameter, nullptr);
}

void GradientBuckets::set_gradient_group(int64_t group) {
  VLMTRAIN_CHECK(group >= 0 && group < num_gradient_groups(), "group {} is out of range, number of groups: {}", group,
                 num_gradient_groups());
  current_gradient_group_ = group;
}

void GradientBuckets::accumulate_gradient(size_t i) {
  ParameterEntry& entry = entries_[i];
  // The gradient is undefined if a backward function wrote all of it into the sum. The hook then
  // only marks it as complete.
  const at::Tensor& gradient = entry.parameter.grad();
  if (layout_.is_in_sharded_block(i)) {
    if (!gradient.defined()) return;
    VLMTRAIN_CHECK(observer_ != nullptr, "no GradientReducer receives the gradient of {}", layout_.name(i));
    observer_->add_block_gradient(i, gradient);
    mark_gradient(i, 0);
    return;
  }
  if (observer_ != nullptr) observer_->check_accepts_gradient(i);
  if (gradient.defined()) {
    const at::Tensor& sum = entry.sums[static_cast<size_t>(current_gradient_group_)];
    if (has_gradient(i, current_gradient_group_)) {
      sum.add_(gradient);
    } else {
      sum.copy_(gradient);
      mark_gradient(i, current_gradient_group_);
    }
  }
  if (observer_ != nullptr) observer_->on_gradient_complete(i);
}

bool GradientBuckets::has_gradient(size_t i, int64_t group) const {
  return entries_[i].has_gradient[static_cast<size_t>(group)];
}

void GradientBuckets::mark_gradient(size_t i, int64_t group) {
  entries_[i].has_gradient.at(static_cast<size_t>(group)) = true;
}

at::Tensor GradientBuckets::sum(size_t i, int64_t group) const {
  VLMTRAIN_CHECK(has_gradient(i, group), "{} has no gradient", layout_.name(i));
  VLMTRAIN_CHECK(!layout_.is_in_sharded_block(i), "the gradient of {} is sharded", layout_.name(i));
  return entries_[i].sums[static_cast<size_t>(group)];
}

at::Tensor GradientBuckets::sum(const std::string& name) const {
  for (size_t i = 0; i < entries_.size(); ++i) {
    if (layout_.name(i) == name) return has_gradient(i) ? sum(i) : at::Tensor();
  }
  throw InternalError(fmt::format("{} is not trained", name));
}

at::Tensor GradientBuckets::get_local_gradient_sum(size_t i) const {
  const auto [first, count] = get_local_range(i);
  if (!layout_.is_in_sharded_block(i)) return sum(i).view(-1).narrow(0, first, count);
  VLMTRAIN_CHECK(has_gradient(i), "{} has no gradient", layout_.name(i));
  const size_t bucket = layout_.bucket_index(i);
  const int64_t begin = layout_.offset(i) + first - shard().rank * layout_.get_part_elements(bucket);
  return get_local_shard(bucket).narrow(0, count == 0 ? 0 : begin, count);
}

at::Tensor GradientBuckets::get_local_shard(size_t bucket) const {
  const int64_t part_elements = layout_.get_part_elements(bucket);
  if (layout_.buckets()[bucket].block != nullptr)
    return block_shards_.narrow(0, bucket_offsets_[bucket], part_elements);
  return get_bucket_sums(bucket, 0).narrow(0, shard().rank * part_elements, part_elements);
}

/// REQUIRES: the bucket is not a sharded block.
at::Tensor GradientBuckets::get_bucket_sums(size_t bucket, int64_t group) const {
  const GradientLayout::Bucket& info = layout_.buckets()[bucket];
  return get_group_sums(info.is_on_host, group).narrow(0, bucket_offsets_[bucket], info.elements);
}

at::Tensor GradientBuckets::fill_missing_gradients(size_t bucket, int64_t group) const {
  std::vector<at::Tensor> sums_without_gradient;
  for (const size_t i : layout_.buckets()[bucket].parameter_indices) {
    if (!has_gradient(i, group)) sums_without_gradient.push_back(entries_[i].sums.at(static_cast<size_t>(group)));
  }
  if (!sums_without_gradient.empty()) at::_foreach_zero_(sums_without_gradient);
  return get_bucket_sums(bucket, group);
}

at::Tensor GradientBuckets::compute_local_norm() const {
  const at::NoGradGuard no_gradients;
  if (flat_sums_.is_cpu()) return compute_host_norm(collect_sums(*this));
  std::vector<at::Tensor> norms;
  if (flat_sums_.is_cuda() && has_all_gradients(*this)) {
    norms = compute_chunk_norms(get_group_sums(/*is_on_host=*/false, 0));
    if (host_sums_.defined())
      std::ranges::move(compute_chunk_norms(get_group_sums(true, 0)), std::back_inserter(norms));
  } else {
    norms = compute_tensor_norms(collect_sums(*this));
  }
  if (norms.empty()) return at::zeros({}, flat_sums_.options());
  return at::linalg_vector_norm(at::stack(norms), 2);
}

void GradientBuckets::combine_gradient_groups(const at::Tensor& factors) {
  const at::NoGradGuard no_gradients;
  for (int64_t group = 0; group < num_gradient_groups(); ++group) {
    for (size_t bucket = 0; bucket < layout_.buckets().size(); ++bucket) fill_missing_gradients(bucket, group);
  }
  for (const bool is_on_host : {false, true}) {
    if (is_on_host && !host_sums_.defined()) continue;
    const at::Tensor combined_sums = get_group_sums(is_on_host, 0);
    combined_sums.mul_(factors.select(0, 0));
    for (int64_t group = 1; group < num_gradient_groups(); ++group) {
      combined_sums.addcmul_(get_group_sums(is_on_host, group), factors.select(0, group));
    }
  }
  for (auto& entry : entries_)
    entry.has_gradient[0] = std::ranges::find(entry.has_gradient, true) != entry.has_gradient.end();
}

void GradientBuckets::reset() {
  for (auto& entry : entries_) {
    entry.parameter.mutable_grad().reset();
    std::fill(entry.has_gradient.begin(), entry.has_gradient.end(), false);
  }
  if (observer_ != nullptr) observer_->on_reset();
}

}  // namespace vlmtrain::engine
