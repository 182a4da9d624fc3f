#include "vlmtrain/engine/optimizer/adamw.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <memory>
#include <tuple>

#include "engine/optimizer/adamw_entry.h"
#include "engine/optimizer/compressed_states.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/random.h"
#include "vlmtrain/memory/allocation_trace.h"

namespace vlmtrain::engine {

namespace {

static_assert(kShardAlignment == kBlockElements, "a block of compressed states belongs to one rank");

/// Returns whether the moments of the parameter are compressed.
bool compresses_moments(OptimizerStateDtype state_dtype, const nn::Parameter& parameter) {
  // As in bitsandbytes (min_8bit_size).
  constexpr int64_t kMinCompressedElements = 4096;
  if (state_dtype == OptimizerStateDtype::kFp32 || parameter.elements() < kMinCompressedElements) return false;
  return state_dtype != OptimizerStateDtype::k8Bit || !parameter.is_embedding;
}

/// Returns the part of a parameter that this rank updates, as a view of the parameter or of its
/// shard.
at::Tensor get_local_weight(const nn::Parameter& parameter, const ElementRange& range, const Shard& shard) {
  if (parameter.has_sharded_gradient()) return parameter.sharded_block->view_local_values(parameter.index_in_block);
  const at::Tensor full_weight = parameter.tensor.detach();
  return shard.covers_all() ? full_weight : full_weight.view(-1).narrow(0, range.first, range.count);
}

}  // namespace

double LearningRates::get_learning_rate(nn::Component component) const {
  switch (component) {
    case nn::Component::kVisionTower:
      return vision_tower;
    case nn::Component::kProjector:
      return projector;
    case nn::Component::kLanguageModel:
      return language_model;
    case nn::Component::kMaskEncoder:
    case nn::Component::kMaskDecoder:
      return masks;
    case nn::Component::kBuffer:
    case nn::Component::kUnused:
      break;
  }
  throw InternalError("unknown component");
}

AdamW::AdamW(const nn::ParameterStore& store, GradientBuckets& buckets, AdamWSettings settings)
    : buckets_(buckets), settings_(settings) {
  const memory::ComponentScope optimizer_scope(memory::Component::kOptimizer);
  const auto fp32_options = store.options().dtype(at::kFloat);
  for (const auto& parameter : store.all()) {
    if (!parameter.tensor.requires_grad()) continue;
    VLMTRAIN_CHECK(entries_.size() < buckets.size(),
                   "the buckets have {} gradients, fewer than there are trained parameters", buckets.size());
    const ElementRange range = buckets.get_local_range(entries_.size());
    const at::Tensor weight = get_local_weight(parameter, range, buckets.shard());
    // The master shares the storage of an fp32 weight.
    Entry entry{parameter.name, parameter.component,  parameter.tensor.dim() >= 2, parameter.tensor, range,
                weight,         weight.to(at::kFloat)};
    if (!compresses_moments(settings.state_dtype, parameter)) {
      entry.first_moment = at::zeros(weight.sizes(), fp32_options);
      entry.second_moment = at::zeros(weight.sizes(), fp32_options);
    }
    entries_.push_back(std::move(entry));
  }
  VLMTRAIN_CHECK(buckets.size() == entries_.size(), "the buckets have {} gradients for {} trained parameters",
                 buckets.size(), entries_.size());
  if (settings.state_dtype != OptimizerStateDtype::kFp32) make_compressed_groups(fp32_options);
  if (settings.loss_scale) loss_scale_.emplace(*settings.loss_scale, fp32_options);
  step_counters_ = at::zeros({static_cast<int64_t>(entries_.size())}, fp32_options);
  for (size_t i = 0; i < entries_.size(); ++i) entries_[i].steps = step_counters_.select(0, static_cast<int64_t>(i));
}

AdamW::~AdamW() = default;

OptimizerUpdate AdamW::prepare(const at::Tensor& loss, const at::Tensor& norm) const {
  const at::NoGradGuard no_gradients;
  const memory::ComponentScope optimizer_scope(memory::Component::kOptimizer);
  OptimizerUpdate update;
  VLMTRAIN_CHECK(norm.defined() || buckets_.shard().covers_all(), "the gradient norm is required with {} shards",
                 buckets_.shard().count);
  update.grad_norm = norm.defined() ? norm : buckets_.compute_local_norm();
  // The fused kernel divides the gradients by the loss scale and by max(1, norm / max_grad_norm).
  if (loss_scale_) {
    update.loss_scale = loss_scale_->value().clone();
    update.grad_norm.div_(update.loss_scale);
    update.gradient_divisor = update.loss_scale;
  }
  if (settings_.max_grad_norm > 0) {
    const at::Tensor clip_divisor = update.grad_norm.div(settings_.max_grad_norm).clamp_min_(1.0);
    update.gradient_divisor =
        update.gradient_divisor.defined() ? clip_divisor.mul_(update.gradient_divisor) : clip_divisor;
  }
  // x − x is 0 for a finite x, else NaN.
  const at::Tensor sum = loss.defined() ? update.grad_norm + loss : update.grad_norm;
  update.skipped = sum.sub(sum).ne_(0.0);
  const bool uses_custom_kernel = has_custom_kernel();
  if (settings_.state_dtype == OptimizerStateDtype::k8Bit && !uses_custom_kernel)
    update.skipped_bool = update.skipped.to(at::kBool);
  const at::Tensor step_increment = 1.0 - update.skipped;
  for (size_t i = 0; i < entries_.size(); ++i) {
    if (!buckets_.has_gradient(i)) continue;
    const Entry& entry = entries_[i];
    update.steps.push_back(entry.steps);
    update.increments.push_back(step_increment);
    if (uses_custom_kernel || !entry.has_local_elements() || !entry.has_master()) continue;
    update.weights.push_back(entry.weight);
    update.master_weights.push_back(entry.master);
  }
  if (uses_custom_kernel) {
    add_custom_kernel_groups(update);
  } else {
    add_aten_groups(update);
    add_compressed_chunks(update);
  }
  return update;
}

void AdamW::add_aten_groups(OptimizerUpdate& update) const {
  std::map<std::pair<nn::Component, bool>, OptimizerUpdate::Group> groups;
  for (size_t i = 0; i < entries_.size(); ++i) {
    const Entry& entry = entries_[i];
    if (!buckets_.has_gradient(i) || !entry.has_local_elements() || entry.is_compressed()) continue;
    OptimizerUpdate::Group& group = groups[{entry.component, entry.has_weight_decay}];
    group.master_weights.push_back(entry.master);
    group.gradients.push_back(get_gradient(i));
    group.first_moments.push_back(entry.first_moment);
    group.second_moments.push_back(entry.second_moment);
    group.steps.push_back(entry.steps);
  }
  for (auto& [key, group] : groups) {
    std::tie(group.component, group.has_weight_decay) = key;
    update.groups.push_back(std::move(group));
  }
}

at::Tensor AdamW::get_gradient(size_t i) const {
  return buckets_.shard().covers_all() ? buckets_.sum(i) : buckets_.get_local_gradient_sum(i);
}

void AdamW::apply_update(const OptimizerUpdate& update, const LearningRates& rates) {
  const at::NoGradGuard no_gradients;
  const memory::ComponentScope optimizer_scope(memory::Component::kOptimizer);
  are_states_consistent_ = false;
  uint64_t rounding_seed = 0;
  if (num_updates_.defined()) {
    auto& num_updates = *num_updates_.mutable_data_ptr<int64_t>();
    const auto update_index = static_cast<uint64_t>(num_updates), rank = static_cast<uint64_t>(buckets_.shard().rank);
    rounding_seed = buckets_.shard().covers_all()
                        ? derive_stream_seed(settings_.seed, "optimizer states", {update_index})
                        : derive_stream_seed(settings_.seed, "optimizer states", {update_index, rank});
    chunk_context_->tables.random.set_current_seed(rounding_seed);
    ++num_updates;
  }
  if (!update.steps.empty()) at::_foreach_add_(update.steps, update.increments);
  const auto gradient_divisor =
      update.gradient_divisor.defined() ? std::optional{update.gradient_divisor} : std::nullopt;
  for (const auto& group : update.groups) {
    if (!group.tensors.empty()) {
      apply_custom_kernel(update, group, rates, rounding_seed);
      continue;
    }
    if (group.compressed_states != nullptr) group.compressed_states->decompress(*group.chunk);
    at::_fused_adamw_(group.master_weights, group.gradients, group.first_moments, group.second_moments,
                      /*max_exp_avg_sqs=*/{}, group.steps, rates.get_learning_rate(group.component), settings_.beta1,
                      settings_.beta2, group.has_weight_decay ? settings_.weight_decay : 0.0, settings_.epsilon,
                      /*amsgrad=*/false,
                      /*maximize=*/false, gradient_divisor, /*found_inf=*/update.skipped);
    if (group.compressed_states != nullptr) group.compressed_states->compress(*group.chunk, update.skipped_bool);
  }
  if (!update.weights.empty()) at::_foreach_copy_(update.weights, update.master_weights);
  buckets_.reset();
  if (loss_scale_) loss_scale_->update(update.skipped);
  are_states_consistent_ = true;
}

at::Tensor AdamW::step(const LearningRates& rates) {
  const OptimizerUpdate update = prepare(/*loss=*/{});
  apply_update(update, rates);
  return update.grad_norm;
}

at::Tensor AdamW::loss_scale() const {
  return loss_scale_ ? loss_scale_->value() : at::Tensor();
}

int64_t AdamW::count_trained_elements() const {
  int64_t elements = 0;
  for (const auto& entry : entries_) elements += entry.parameter.numel();
  return elements;
}

}  // namespace vlmtrain::engine
