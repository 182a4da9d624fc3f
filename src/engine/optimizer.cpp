#include "vlmtrain/engine/optimizer.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <memory>
#include <tuple>

#include "engine/compressed_states.h"
#include "engine/optimizer_entry.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/rng.h"
#include "vlmtrain/memory/place.h"

namespace vlmtrain::engine {

namespace {

static_assert(kShardAlignment == kBlockElements, "a block of compressed states belongs to one rank");

bool compresses(OptimizerStates states, const nn::Parameter& parameter) {
  constexpr int64_t kFewestElements = 4096;
  if (states == OptimizerStates::kFp32 || parameter.elements() < kFewestElements) return false;
  return states != OptimizerStates::k8Bit || !parameter.is_embedding;
}

/// What of a parameter this rank moves.
at::Tensor own_weight(const nn::Parameter& parameter, const Piece& piece, const Shard& shard) {
  if (parameter.is_trained_in_parts()) return parameter.sharded->own_piece(parameter.number_in_block);
  const at::Tensor whole = parameter.tensor.detach();
  return shard.is_all() ? whole : whole.view(-1).narrow(0, piece.first, piece.count);
}

}  // namespace

double LearningRates::of(nn::Component component) const {
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
    case nn::Component::kConstant:
    case nn::Component::kUnused:
      break;
  }
  throw InternalError("unknown component");
}

AdamW::AdamW(const nn::ParameterStore& store, GradientSums& sums, AdamWSettings settings)
    : sums_(sums), settings_(settings) {
  const memory::InComponent states(memory::Component::kOptimizer);
  const auto fp32 = store.options().dtype(at::kFloat);
  for (const auto& parameter : store.all()) {
    if (!parameter.tensor.requires_grad()) continue;
    VLMTRAIN_CHECK(entries_.size() < sums.size(), "sums of {} gradients for more parameters", sums.size());
    const Piece piece = sums.piece(entries_.size());
    const at::Tensor weight = own_weight(parameter, piece, sums.shard());
    // The master is the same storage if that is fp32.
    Entry entry{parameter.name, parameter.component,  parameter.tensor.dim() >= 2, parameter.tensor, piece,
                weight,         weight.to(at::kFloat)};
    if (!compresses(settings.states, parameter)) {
      entry.first_moment = at::zeros(weight.sizes(), fp32);
      entry.second_moment = at::zeros(weight.sizes(), fp32);
    }
    entries_.push_back(std::move(entry));
  }
  VLMTRAIN_CHECK(sums.size() == entries_.size(), "sums of {} gradients for {} parameters", sums.size(),
                 entries_.size());
  if (settings.states != OptimizerStates::kFp32) make_compressed_groups(fp32);
  if (settings.loss_scale) loss_scale_.emplace(*settings.loss_scale, fp32);
  steps_ = at::zeros({static_cast<int64_t>(entries_.size())}, fp32);
  for (size_t i = 0; i < entries_.size(); ++i) entries_[i].steps = steps_.select(0, static_cast<int64_t>(i));
}

AdamW::~AdamW() = default;

PreparedUpdate AdamW::prepare(const at::Tensor& loss, const at::Tensor& norm) const {
  const at::NoGradGuard no_gradients;
  const memory::InComponent optimizer(memory::Component::kOptimizer);
  PreparedUpdate update;
  VLMTRAIN_CHECK(norm.defined() || sums_.shard().is_all(), "the norm of one part of {}", sums_.shard().count);
  update.grad_norm = norm.defined() ? norm : sums_.norm();
  // The fused kernel divides the gradients on the fly, by the loss scale and max(1, norm / max_grad_norm).
  if (loss_scale_) {
    update.loss_scale = loss_scale_->value().clone();
    update.grad_norm.div_(update.loss_scale);
    update.divisor = update.loss_scale;
  }
  if (settings_.max_grad_norm > 0) {
    const at::Tensor clipping = update.grad_norm.div(settings_.max_grad_norm).clamp_min_(1.0);
    update.divisor = update.divisor.defined() ? clipping.mul_(update.divisor) : clipping;
  }
  // x − x is 0 for a finite x, else NaN.
  const at::Tensor sum = loss.defined() ? update.grad_norm + loss : update.grad_norm;
  update.skipped = sum.sub(sum).ne_(0.0);
  const bool is_own = has_own_kernel();
  if (settings_.states == OptimizerStates::k8Bit && !is_own) update.skipped_flag = update.skipped.to(at::kBool);
  const at::Tensor increment = 1.0 - update.skipped;
  for (size_t i = 0; i < entries_.size(); ++i) {
    if (!sums_.received(i)) continue;
    const Entry& entry = entries_[i];
    update.steps.push_back(entry.steps);
    update.increments.push_back(increment);
    if (is_own || !entry.is_here() || !entry.has_master()) continue;
    update.weights.push_back(entry.weight);
    update.masters.push_back(entry.master);
  }
  if (is_own) {
    add_moved(update);
  } else {
    add_groups(update);
    add_chunks(update);
  }
  return update;
}

void AdamW::add_groups(PreparedUpdate& update) const {
  std::map<std::pair<nn::Component, bool>, PreparedUpdate::Group> groups;
  for (size_t i = 0; i < entries_.size(); ++i) {
    const Entry& entry = entries_[i];
    if (!sums_.received(i) || !entry.is_here() || entry.is_compressed()) continue;
    PreparedUpdate::Group& group = groups[{entry.component, entry.decays}];
    group.masters.push_back(entry.master);
    group.gradients.push_back(gradient_of(i));
    group.first_moments.push_back(entry.first_moment);
    group.second_moments.push_back(entry.second_moment);
    group.steps.push_back(entry.steps);
  }
  for (auto& [key, group] : groups) {
    std::tie(group.component, group.decays) = key;
    update.groups.push_back(std::move(group));
  }
}

at::Tensor AdamW::gradient_of(size_t i) const {
  return sums_.shard().is_all() ? sums_.sum(i) : sums_.sum_of_piece(i);
}

void AdamW::apply(const PreparedUpdate& update, const LearningRates& rates) {
  const at::NoGradGuard no_gradients;
  const memory::InComponent optimizer(memory::Component::kOptimizer);
  is_whole_ = false;
  uint64_t rounding_seed = 0;
  if (updates_.defined()) {
    auto& updates = *updates_.mutable_data_ptr<int64_t>();
    const auto place = static_cast<uint64_t>(updates), rank = static_cast<uint64_t>(sums_.shard().rank);
    rounding_seed = sums_.shard().is_all() ? stream_seed(settings_.seed, "optimizer states", {place})
                                           : stream_seed(settings_.seed, "optimizer states", {place, rank});
    room_->shared.random.set_current_seed(rounding_seed);
    ++updates;
  }
  if (!update.steps.empty()) at::_foreach_add_(update.steps, update.increments);
  const auto divisor = update.divisor.defined() ? std::optional{update.divisor} : std::nullopt;
  for (const auto& group : update.groups) {
    if (!group.moved.empty()) {
      move(update, group, rates, rounding_seed);
      continue;
    }
    if (group.states != nullptr) group.states->expand(*group.chunk);
    at::_fused_adamw_(group.masters, group.gradients, group.first_moments, group.second_moments,
                      /*max_exp_avg_sqs=*/{}, group.steps, rates.of(group.component), settings_.beta1, settings_.beta2,
                      group.decays ? settings_.weight_decay : 0.0, settings_.epsilon, /*amsgrad=*/false,
                      /*maximize=*/false, divisor, /*found_inf=*/update.skipped);
    if (group.states != nullptr) group.states->compress(*group.chunk, update.skipped_flag);
  }
  if (!update.weights.empty()) at::_foreach_copy_(update.weights, update.masters);
  sums_.drop();
  if (loss_scale_) loss_scale_->update(update.skipped);
  is_whole_ = true;
}

at::Tensor AdamW::step(const LearningRates& rates) {
  const PreparedUpdate update = prepare(/*loss=*/{});
  apply(update, rates);
  return update.grad_norm;
}

at::Tensor AdamW::loss_scale() const {
  return loss_scale_ ? loss_scale_->value() : at::Tensor();
}

int64_t AdamW::trained_elements() const {
  int64_t elements = 0;
  for (const auto& entry : entries_) elements += entry.parameter.numel();
  return elements;
}

}  // namespace vlmtrain::engine
