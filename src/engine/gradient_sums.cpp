#include "vlmtrain/engine/gradient_sums.h"

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

#include "engine/host_norm.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/memory/place.h"
#include "vlmtrain/nn/gradient_sink.h"

namespace vlmtrain::engine {

namespace {

/// Sums begin where the allocator would let them begin.
constexpr int64_t kSumAlignment = 128;
/// Large enough for a network to be busy, small enough for the first ones to travel early.
constexpr int64_t kBucketElements = int64_t{25} * 1024 * 1024 / 4;
/// ATen's kernels count bytes in 32 bits.
constexpr int64_t kMostElementsOfNorm = int64_t{1} << 28;
/// Parameters of a group of Linears are no further apart: weights, biases, and what adapters have, of three.
constexpr size_t kFurthestOfGroup = 16;

}  // namespace

class GradientSums::Hook : public nn::GradientSink {
 public:
  Hook(GradientSums& sums, size_t number) : sums_(sums), number_(number) {}

  at::Tensor sum() const override {
    if (sums_.is_of_sharded_block(number_)) return {};
    sums_.check_open(entry());
    return entry().sums[group()];
  }
  bool has_sum() const override { return entry().received[group()]; }
  void set_has_sum() override { sums_.entries_[number_].received[group()] = true; }

  void operator()(const at::Tensor& parameter) override {
    sums_.receive(number_);
    parameter.mutable_grad().reset();
  }

 private:
  size_t group() const { return static_cast<size_t>(sums_.group_); }
  const Entry& entry() const { return sums_.entries_[number_]; }

  GradientSums& sums_;
  size_t number_;
};

GradientSums::GradientSums(const nn::ParameterStore& store, int64_t groups, Shard shard)
    : shard_(shard), has_sharded_blocks_(!store.shard().is_all()) {
  const memory::InComponent gradients(memory::Component::kGradients);
  VLMTRAIN_CHECK(groups >= 1, "{} groups of gradients", groups);
  VLMTRAIN_CHECK(shard.is_all() || groups == 1, "{} groups of gradients, each in parts", groups);
  VLMTRAIN_CHECK(shard.rank >= 0 && shard.rank < shard.count, "part {} of {}", shard.rank, shard.count);
  for (const auto& parameter : store.all()) {
    if (!parameter.tensor.requires_grad()) continue;
    entries_.push_back({.name = parameter.name, .parameter = parameter.tensor});
    if (parameter.is_trained_in_parts()) {
      entries_.back().block = parameter.sharded.get();
      entries_.back().place = parameter.sharded->first(parameter.number_in_block);
    }
  }
  lay_out();
  const int64_t elements = buckets_.empty() ? 0 : buckets_.back().first + buckets_.back().elements;
  flat_ = at::zeros({groups, elements}, store.options().dtype(at::kFloat));
  lay_out_blocks(store);
  for (const auto& bucket : buckets_) {
    for (const size_t i : bucket.entries) {
      Entry& entry = entries_[i];
      if (bucket.block != nullptr) {
        entry.received.assign(1, false);
        continue;
      }
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
  std::vector<bool> is_placed(entries_.size(), false);
  for (size_t i = entries_.size(); i-- > 0;) {
    if (is_placed[i] || entries_[i].block != nullptr) continue;
    // Weights that lie end to end (nn::Linears) do so here as well, so that they still do where they are moved to such
    // places (SharedWeights).
    std::vector<size_t> together;
    int64_t count = 0;
    for (size_t other = i - std::min(i, kFurthestOfGroup); other <= i; ++other) {
      if (is_placed[other] || entries_[other].block != nullptr) continue;
      if (!entries_[other].parameter.is_alias_of(entries_[i].parameter)) continue;
      together.push_back(other);
      count += aligned(entries_[other].parameter.numel());
    }
    if (buckets_.empty() || buckets_.back().elements + count > kBucketElements) buckets_.emplace_back();
    for (const size_t member : together) {
      Entry& entry = entries_[member];
      is_placed[member] = true;
      entry.bucket = buckets_.size() - 1;
      entry.place = buckets_.back().elements;
      buckets_.back().elements += aligned(entry.parameter.numel());
      buckets_.back().entries.push_back(member);
    }
  }
  int64_t first = 0;
  for (auto& bucket : buckets_) {
    bucket.first = first;
    bucket.elements = aligned((bucket.elements + shard_.count - 1) / shard_.count) * shard_.count;
    first += bucket.elements;
  }
}

void GradientSums::lay_out_blocks(const nn::ParameterStore& store) {
  int64_t first = 0, largest = 0;
  for (size_t i = entries_.size(); i-- > 0;) {
    Entry& entry = entries_[i];
    if (entry.block == nullptr) continue;
    if (buckets_.empty() || buckets_.back().block != entry.block) {
      const int64_t elements = entry.block->elements(nn::ShardedBlock::Kind::kTrained);
      buckets_.push_back({.first = first, .elements = elements, .block = entry.block});
      first += elements / shard_.count;
      largest = std::max(largest, elements);
    }
    entry.bucket = buckets_.size() - 1;
    buckets_.back().entries.push_back(i);
  }
  const auto options = store.options().dtype(at::kFloat);
  parts_ = at::zeros({first}, options);
  for (auto& room : room_) room = at::zeros({largest}, options);
}

Piece GradientSums::piece(size_t i) const {
  const Entry& entry = entries_[i];
  const int64_t part = buckets_[entry.bucket].elements / shard_.count;
  return nn::piece_in_shard(entry.place, entry.parameter.numel(), part, shard_);
}

at::Tensor GradientSums::part_of(const Bucket& bucket) const {
  const int64_t part = bucket.elements / shard_.count;
  if (bucket.block != nullptr) return parts_.narrow(0, bucket.first, part);
  return flat_.select(0, 0).narrow(0, bucket.first + shard_.rank * part, part);
}

std::vector<at::Tensor> GradientSums::parts_of_blocks() const {
  std::vector<at::Tensor> parts;
  for (const auto& bucket : buckets_) {
    if (bucket.block != nullptr && bucket.has_sum) parts.push_back(part_of(bucket));
  }
  return parts;
}

std::vector<at::Tensor> GradientSums::parts_of_others() const {
  std::vector<at::Tensor> parts;
  for (const auto& bucket : buckets_) {
    if (bucket.block == nullptr) parts.push_back(part_of(bucket));
  }
  return parts;
}

std::vector<int64_t> GradientSums::bucket_elements() const {
  std::vector<int64_t> elements;
  for (const auto& bucket : buckets_) {
    if (bucket.block == nullptr) elements.push_back(bucket.elements);
  }
  return elements;
}

void GradientSums::receive_for(int64_t group) {
  VLMTRAIN_CHECK(group >= 0 && group < groups(), "group {} of {}", group, groups());
  group_ = group;
}

void GradientSums::check_open(const Entry& entry) const {
  VLMTRAIN_CHECK(entry.bucket >= handed_over_ && !(is_last_pass_ && entry.in_last_pass),
                 "a gradient of {} after its sum was handed over", entry.name);
}

void GradientSums::receive(size_t i) {
  Entry& entry = entries_[i];
  if (entry.block != nullptr) {
    if (entry.parameter.grad().defined()) receive_of_block(i);
    return;
  }
  const auto group = static_cast<size_t>(group_);
  check_open(entry);
  // Undefined where all of it went into the sum at once; this says that there will be no more in this pass.
  if (const at::Tensor& gradient = entry.parameter.grad(); gradient.defined()) {
    if (entry.received[group]) {
      entry.sums[group].add_(gradient);
    } else {
      entry.sums[group].copy_(gradient);
      entry.received[group] = true;
    }
  }
  if (!is_last_pass_) return;
  entry.in_last_pass = true;
  --buckets_[entry.bucket].missing;
  while (handed_over_ < buckets_.size() && buckets_[handed_over_].missing == 0) hand_over(handed_over_++, group_);
}

void GradientSums::receive_of_block(size_t i) {
  Entry& entry = entries_[i];
  VLMTRAIN_CHECK(filled_bucket_ == kNone || filled_bucket_ == entry.bucket,
                 "a gradient of {} while those of another block are made", entry.name);
  filled_bucket_ = entry.bucket;
  room_[filling_].narrow(0, entry.place, entry.parameter.numel()).copy_(entry.parameter.grad().view(-1));
  filled_.push_back(i);
  entry.received[0] = true;
}

void GradientSums::finish_block(const nn::ShardedBlock& block) {
  const auto found = std::ranges::find(buckets_, &block, &Bucket::block);
  if (found == buckets_.end()) return;
  const at::NoGradGuard no_gradients;
  const auto number = static_cast<size_t>(found - buckets_.begin());
  VLMTRAIN_CHECK(filled_bucket_ == kNone || filled_bucket_ == number, "gradients of another block than that which ran");
  const at::Tensor whole = room_[filling_].narrow(0, 0, found->elements);
  clear_unfilled(*found, whole);
  filled_.clear();
  filled_bucket_ = kNone;
  finish_blocks();
  if (reduce_) reduce_(whole);
  summed_bucket_ = number;
  filling_ = 1 - filling_;
}

/// What lies between tensors is nobody's, whatever it is.
void GradientSums::clear_unfilled(const Bucket& bucket, const at::Tensor& whole) const {
  if (filled_.empty()) {
    whole.zero_();
    return;
  }
  std::vector<at::Tensor> missing;
  for (const size_t i : bucket.entries) {
    if (std::ranges::find(filled_, i) != filled_.end()) continue;
    missing.push_back(whole.narrow(0, entries_[i].place, entries_[i].parameter.numel()));
  }
  if (!missing.empty()) at::_foreach_zero_(missing);
}

void GradientSums::finish_blocks() {
  if (summed_bucket_ == kNone) return;
  const at::NoGradGuard no_gradients;
  if (wait_) wait_();
  Bucket& bucket = buckets_[summed_bucket_];
  const int64_t part = bucket.elements / shard_.count;
  const at::Tensor own = room_[1 - filling_].narrow(0, shard_.rank * part, part);
  if (bucket.has_sum) {
    part_of(bucket).add_(own);
  } else {
    part_of(bucket).copy_(own);
    bucket.has_sum = true;
  }
  summed_bucket_ = kNone;
}

bool GradientSums::received(size_t i, int64_t group) const {
  return entries_[i].received[static_cast<size_t>(group)];
}

at::Tensor GradientSums::sum(size_t i, int64_t group) const {
  VLMTRAIN_CHECK(received(i, group), "{} has no gradient", entries_[i].name);
  VLMTRAIN_CHECK(entries_[i].block == nullptr, "the whole gradient of {}, of which each rank has a part",
                 entries_[i].name);
  return entries_[i].sums[static_cast<size_t>(group)];
}

at::Tensor GradientSums::sum_of_piece(size_t i) const {
  const Entry& entry = entries_[i];
  const auto [first, count] = piece(i);
  if (entry.block == nullptr) return sum(i).view(-1).narrow(0, first, count);
  VLMTRAIN_CHECK(received(i), "{} has no gradient", entry.name);
  const Bucket& bucket = buckets_[entry.bucket];
  const int64_t begin = entry.place + first - shard_.rank * (bucket.elements / shard_.count);
  return part_of(bucket).narrow(0, count == 0 ? 0 : begin, count);
}

at::Tensor GradientSums::sum(const std::string& name) const {
  for (size_t i = 0; i < entries_.size(); ++i) {
    if (entries_[i].name == name) return received(i) ? sum(i) : at::Tensor();
  }
  throw InternalError(fmt::format("{} is not trained", name));
}

at::Tensor GradientSums::norm() const {
  const at::NoGradGuard no_gradients;
  if (flat_.is_cpu()) return host_norm(received_sums());
  const std::vector<at::Tensor> norms = flat_.is_cuda() && is_all_received() ? norms_of_all() : norms_of_each();
  if (norms.empty()) return at::zeros({}, flat_.options());
  return at::linalg_vector_norm(at::stack(norms), 2);
}

/// Whether every element of flat_ is of a sum of this step, or zero, and nothing else is summed.
bool GradientSums::is_all_received() const {
  return shard_.is_all() && !has_sharded_blocks_ && !entries_.empty() &&
         std::ranges::all_of(entries_, [](const Entry& entry) { return entry.received.front(); });
}

/// In few launches: of tensors of a list so many as there are million elements.
std::vector<at::Tensor> GradientSums::norms_of_all() const {
  const at::Tensor all = flat_.select(0, 0);
  std::vector<at::Tensor> norms;
  for (const at::Tensor& piece : all.split(kMostElementsOfNorm)) norms.push_back(at::linalg_vector_norm(piece, 2));
  return norms;
}

std::vector<at::Tensor> GradientSums::norms_of_each() const {
  const auto sums = received_sums();
  return sums.empty() ? sums : at::_foreach_norm(sums, 2);
}

/// Of one part, its pieces.
std::vector<at::Tensor> GradientSums::received_sums() const {
  std::vector<at::Tensor> sums;
  for (size_t i = 0; i < size(); ++i) {
    if (!received(i)) continue;
    if (shard_.is_all()) {
      sums.push_back(sum(i));
    } else if (piece(i).count > 0) {
      sums.push_back(sum_of_piece(i));
    }
  }
  return sums;
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
  for (auto& bucket : buckets_) bucket.has_sum = false;
  filled_.clear();
  filled_bucket_ = summed_bucket_ = kNone;
  is_last_pass_ = false;
  handed_over_ = 0;
}

void GradientSums::reduce_with(Reduce reduce, std::function<void()> wait) {
  reduce_ = std::move(reduce);
  wait_ = std::move(wait);
}

void GradientSums::begin_last_pass() {
  // Between the calls for blocks, these would come at another place in each process.
  if (!reduce_ || groups() > 1 || has_sharded_blocks_) return;
  is_last_pass_ = true;
  for (auto& entry : entries_) entry.in_last_pass = false;
  for (auto& bucket : buckets_) bucket.missing = bucket.entries.size();
}

void GradientSums::finish() {
  is_last_pass_ = false;
  finish_blocks();
  if (!reduce_) return;
  const at::NoGradGuard no_gradients;
  for (int64_t group = 0; group < groups(); ++group) {
    for (size_t bucket = handed_over_; bucket < buckets_.size(); ++bucket) {
      if (buckets_[bucket].block == nullptr) hand_over(bucket, group);
    }
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
