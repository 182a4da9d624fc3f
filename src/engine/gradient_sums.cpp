#include "vlmtrain/engine/gradient_sums.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/_foreach_zero.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <utility>

#include "vlmtrain/base/error.h"
#include "vlmtrain/memory/place.h"

namespace vlmtrain::engine {

namespace {

/// Sums begin where the allocator would let them begin.
constexpr int64_t kSumAlignment = 128;
/// Large enough for a network to be busy, small enough for the first ones to travel early.
constexpr int64_t kBucketElements = int64_t{25} * 1024 * 1024 / 4;

}  // namespace

class GradientSums::Hook : public torch::autograd::PostAccumulateGradHook {
 public:
  Hook(GradientSums& sums, size_t number) : sums_(sums), number_(number) {}

  void operator()(const at::Tensor& parameter) override {
    sums_.receive(number_);
    parameter.mutable_grad().reset();
  }

 private:
  GradientSums& sums_;
  size_t number_;
};

GradientSums::GradientSums(const nn::ParameterStore& store, int64_t groups, Shard shard) : shard_(shard) {
  const memory::InComponent gradients(memory::Component::kGradients);
  VLMTRAIN_CHECK(groups >= 1, "{} groups of gradients", groups);
  VLMTRAIN_CHECK(shard.is_all() || groups == 1, "{} groups of gradients, each in parts", groups);
  VLMTRAIN_CHECK(shard.rank >= 0 && shard.rank < shard.count, "part {} of {}", shard.rank, shard.count);
  for (const auto& parameter : store.all()) {
    if (parameter.tensor.requires_grad()) entries_.push_back({parameter.name, parameter.tensor});
  }
  lay_out();
  const int64_t elements = buckets_.empty() ? 0 : buckets_.back().first + buckets_.back().elements;
  flat_ = at::zeros({groups, elements}, store.options().dtype(at::kFloat));
  for (const auto& bucket : buckets_) {
    for (const size_t i : bucket.entries) {
      Entry& entry = entries_[i];
      const int64_t first = bucket.first + entry.place, count = entry.parameter.numel();
      for (int64_t group = 0; group < groups; ++group) {
        entry.sums.push_back(flat_.select(0, group).narrow(0, first, count).view(entry.parameter.sizes()));
      }
      entry.received.assign(static_cast<size_t>(groups), false);
    }
  }
  for (size_t i = 0; i < entries_.size(); ++i) {
    VLMTRAIN_CHECK(torch::autograd::impl::post_acc_grad_hooks(entries_[i].parameter) == nullptr,
                   "the gradients of {} are already summed", entries_[i].name);
    torch::autograd::impl::set_post_acc_grad_hooks(entries_[i].parameter, std::make_unique<Hook>(*this, i));
  }
}

GradientSums::~GradientSums() {
  for (const auto& entry : entries_) torch::autograd::impl::set_post_acc_grad_hooks(entry.parameter, nullptr);
}

int64_t GradientSums::aligned(int64_t elements) const {
  const int64_t alignment = shard_.is_all() ? kSumAlignment : kShardAlignment;
  return (elements + alignment - 1) / alignment * alignment;
}

void GradientSums::lay_out() {
  for (size_t i = entries_.size(); i-- > 0;) {
    Entry& entry = entries_[i];
    const int64_t count = aligned(entry.parameter.numel());
    if (buckets_.empty() || buckets_.back().elements + count > kBucketElements) buckets_.emplace_back();
    entry.bucket = buckets_.size() - 1;
    entry.place = buckets_.back().elements;
    buckets_.back().elements += count;
    buckets_.back().entries.push_back(i);
  }
  int64_t first = 0;
  for (auto& bucket : buckets_) {
    bucket.first = first;
    bucket.elements = aligned((bucket.elements + shard_.count - 1) / shard_.count) * shard_.count;
    first += bucket.elements;
  }
}

Piece GradientSums::piece(size_t i) const {
  const Entry& entry = entries_[i];
  const int64_t part = buckets_[entry.bucket].elements / shard_.count;
  const int64_t first = std::max(shard_.rank * part, entry.place);
  const int64_t end = std::min((shard_.rank + 1) * part, entry.place + entry.parameter.numel());
  return end > first ? Piece{.first = first - entry.place, .count = end - first} : Piece{};
}

std::vector<int64_t> GradientSums::bucket_elements() const {
  std::vector<int64_t> elements;
  for (const auto& bucket : buckets_) elements.push_back(bucket.elements);
  return elements;
}

void GradientSums::receive_for(int64_t group) {
  VLMTRAIN_CHECK(group >= 0 && group < groups(), "group {} of {}", group, groups());
  group_ = group;
}

void GradientSums::receive(size_t i) {
  Entry& entry = entries_[i];
  const auto group = static_cast<size_t>(group_);
  VLMTRAIN_CHECK(entry.bucket >= handed_over_ && !(is_last_pass_ && entry.in_last_pass),
                 "a gradient of {} after its sum was handed over", entry.name);
  const at::Tensor& gradient = entry.parameter.grad();
  if (entry.received[group]) {
    entry.sums[group].add_(gradient);
  } else {
    entry.sums[group].copy_(gradient);
    entry.received[group] = true;
  }
  if (!is_last_pass_) return;
  entry.in_last_pass = true;
  --buckets_[entry.bucket].missing;
  while (handed_over_ < buckets_.size() && buckets_[handed_over_].missing == 0) hand_over(handed_over_++, group_);
}

bool GradientSums::received(size_t i, int64_t group) const {
  return entries_[i].received[static_cast<size_t>(group)];
}

at::Tensor GradientSums::sum(size_t i, int64_t group) const {
  VLMTRAIN_CHECK(received(i, group), "{} has no gradient", entries_[i].name);
  return entries_[i].sums[static_cast<size_t>(group)];
}

at::Tensor GradientSums::sum_of_piece(size_t i) const {
  const auto [first, count] = piece(i);
  return sum(i).view(-1).narrow(0, first, count);
}

at::Tensor GradientSums::sum(const std::string& name) const {
  for (size_t i = 0; i < entries_.size(); ++i) {
    if (entries_[i].name == name) return received(i) ? sum(i) : at::Tensor();
  }
  throw InternalError(fmt::format("{} is not trained", name));
}

at::Tensor GradientSums::norm() const {
  const at::NoGradGuard no_gradients;
  std::vector<at::Tensor> sums;
  for (size_t i = 0; i < size(); ++i) {
    if (!received(i)) continue;
    if (shard_.is_all()) {
      sums.push_back(sum(i));
    } else if (piece(i).count > 0) {
      sums.push_back(sum_of_piece(i));
    }
  }
  if (sums.empty()) return at::zeros({}, flat_.options());
  return at::linalg_vector_norm(at::stack(at::_foreach_norm(sums, 2)), 2);
}

void GradientSums::clear_missing(const Bucket& bucket, int64_t group) const {
  std::vector<at::Tensor> missing;
  for (const size_t i : bucket.entries) {
    if (!received(i, group)) missing.push_back(entries_[i].sums[static_cast<size_t>(group)]);
  }
  if (!missing.empty()) at::_foreach_zero_(missing);
}

void GradientSums::combine(const at::Tensor& factors) {
  const at::NoGradGuard no_gradients;
  for (int64_t group = 0; group < groups(); ++group) {
    for (const auto& bucket : buckets_) clear_missing(bucket, group);
  }
  const at::Tensor combined = flat_.select(0, 0);
  combined.mul_(factors.select(0, 0));
  for (int64_t group = 1; group < groups(); ++group) {
    combined.addcmul_(flat_.select(0, group), factors.select(0, group));
  }
  for (auto& entry : entries_) entry.received[0] = std::ranges::find(entry.received, true) != entry.received.end();
}

void GradientSums::drop() {
  for (auto& entry : entries_) {
    entry.parameter.mutable_grad().reset();
    std::fill(entry.received.begin(), entry.received.end(), false);
  }
  is_last_pass_ = false;
  handed_over_ = 0;
}

void GradientSums::reduce_with(Reduce reduce) {
  reduce_ = std::move(reduce);
}

void GradientSums::begin_last_pass() {
  if (!reduce_ || groups() > 1) return;
  is_last_pass_ = true;
  for (auto& entry : entries_) entry.in_last_pass = false;
  for (auto& bucket : buckets_) bucket.missing = bucket.entries.size();
}

void GradientSums::finish() {
  is_last_pass_ = false;
  if (!reduce_) return;
  const at::NoGradGuard no_gradients;
  for (int64_t group = 0; group < groups(); ++group) {
    for (size_t bucket = handed_over_; bucket < buckets_.size(); ++bucket) hand_over(bucket, group);
  }
  handed_over_ = buckets_.size();
}

std::vector<int64_t> GradientSums::received_places() const {
  std::vector<int64_t> places;
  for (int64_t group = 0; group < groups(); ++group) {
    for (size_t i = 0; i < size(); ++i) {
      if (received(i, group)) places.push_back(group * std::ssize(entries_) + static_cast<int64_t>(i));
    }
  }
  return places;
}

void GradientSums::count_as_received(const std::vector<int64_t>& places) {
  for (const int64_t place : places) {
    const auto [group, i] = std::div(place, std::ssize(entries_));
    entries_[static_cast<size_t>(i)].received.at(static_cast<size_t>(group)) = true;
  }
}

void GradientSums::hand_over(size_t bucket, int64_t group) {
  clear_missing(buckets_[bucket], group);
  reduce_(flat_.select(0, group).narrow(0, buckets_[bucket].first, buckets_[bucket].elements));
}

}  // namespace vlmtrain::engine
