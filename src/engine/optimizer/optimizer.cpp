#include "vlmtrain/engine/optimizer/optimizer.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_amp_update_scale.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

#include "engine/optimizer/state_storage.h"
#include "engine/optimizer/update_rule.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/hash.h"
#include "vlmtrain/memory/memory_tag.h"

namespace vlmtrain::engine {

/// The tensors of an update.
struct PreparedGroups {
  std::vector<UpdateGroup> groups{};
  std::map<OptimizerKind, std::unique_ptr<UpdateScratch>> scratch{};
  at::Tensor gradient_divisor{};  // fp32 scalar, from clipping and loss scale; may be undefined
  at::Tensor skipped_bool{};      // bool scalar; defined if a group needs it
  // Step counters of all parameters with a gradient; all increments are the same scalar.
  std::vector<at::Tensor> steps{}, increments{};
  // 16-bit weights that no fused rule writes, and their masters, which are copied to them.
  std::vector<at::Tensor> weights{}, masters{};
};

Optimizer::Optimizer(const nn::ParameterStore& store, GradientBuckets& buckets, const OptimizerSettings& settings,
                     Offload offload)
    : buckets_(buckets), settings_(settings), rules_(std::make_unique<const UpdateRules>(settings)) {
  const memory::ComponentScope optimizer_scope(memory::Component::kOptimizer);
  const auto fp32_options = store.options().dtype(at::kFloat);
  storage_ = std::make_unique<OptimizerStateStorage>(store, buckets, settings, *rules_, offload);
  if (storage_->rounds_stochastically()) num_updates_ = at::zeros({}, at::kLong);
  if (settings.loss_scale) loss_scale_.emplace(*settings.loss_scale, fp32_options);
  step_counters_ = at::zeros({std::ssize(storage_->parameters())}, fp32_options);
}

Optimizer::~Optimizer() = default;

OptimizerUpdate Optimizer::prepare(const at::Tensor& loss, const at::Tensor& norm) const {
  const at::NoGradGuard no_gradients;
  const memory::ComponentScope optimizer_scope(memory::Component::kOptimizer);
  OptimizerUpdate update;
  auto prepared = std::make_shared<PreparedGroups>();
  VLMTRAIN_CHECK(norm.defined() || shard().covers_all(), "the gradient norm is required with {} shards", shard().count);
  update.grad_norm = norm.defined() ? norm : buckets_.compute_local_norm();
  // Rules divide the gradients by the loss scale and by max(1, norm / max_grad_norm).
  if (loss_scale_) {
    update.loss_scale = loss_scale_->value().clone();
    update.grad_norm.div_(update.loss_scale);
    prepared->gradient_divisor = update.loss_scale;
  }
  if (settings_.max_grad_norm > 0) {
    const at::Tensor clip_divisor = update.grad_norm.div(settings_.max_grad_norm).clamp_min_(1.0);
    prepared->gradient_divisor =
        prepared->gradient_divisor.defined() ? clip_divisor.mul_(prepared->gradient_divisor) : clip_divisor;
  }
  // x − x is 0 for a finite x, else NaN.
  const at::Tensor sum = loss.defined() ? update.grad_norm + loss : update.grad_norm;
  update.skipped = sum.sub(sum).ne_(0.0);
  if (needs_bool_skip_flag()) prepared->skipped_bool = update.skipped.to(at::kBool);
  const at::Tensor step_increment = 1.0 - update.skipped;
  const auto& parameters = storage_->parameters();
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (!buckets_.has_gradient(i)) continue;
    const ParameterState& parameter = parameters[i];
    prepared->steps.push_back(step_counters_.select(0, static_cast<int64_t>(i)));
    prepared->increments.push_back(step_increment);
    if (storage_->is_fused(parameter) || !parameter.has_local_elements() || !parameter.has_fp32_copy()) continue;
    prepared->weights.push_back(parameter.weight);
    prepared->masters.push_back(parameter.master);
  }
  prepared->groups = storage_->make_update_groups(buckets_, step_counters_);
  prepared->scratch = rules_->allocate_scratch(prepared->groups);
  update.groups = std::move(prepared);
  return update;
}

bool Optimizer::needs_bool_skip_flag() const {
  if (settings_.state_dtype == OptimizerStateDtype::k8Bit && storage_->compresses_in_chunks()) return true;
  return std::ranges::any_of(storage_->parameters(), [this](const ParameterState& parameter) {
    return rules_->get(parameter.group.rule).needs_bool_skip_flag();
  });
}

/// Starts the random numbers of this update for stochastic rounding. Returns their seed; 0 without
/// it.
uint64_t Optimizer::start_rounding_sequence() {
  if (!num_updates_.defined()) return 0;
  auto& num_updates = *num_updates_.mutable_data_ptr<int64_t>();
  const auto update_index = static_cast<uint64_t>(num_updates), rank = static_cast<uint64_t>(shard().rank);
  const auto derive_seed = [&](std::string_view stream) {
    return shard().covers_all() ? derive_stream_seed(settings_.seed, stream, {update_index})
                                : derive_stream_seed(settings_.seed, stream, {update_index, rank});
  };
  const uint64_t seed = derive_seed("optimizer states");
  storage_->seed_rounding(seed, derive_seed("weights"));
  ++num_updates;
  return seed;
}

void Optimizer::apply_update(const OptimizerUpdate& update, const LearningRates& rates) {
  const at::NoGradGuard no_gradients;
  const memory::ComponentScope optimizer_scope(memory::Component::kOptimizer);
  are_states_consistent_ = false;
  const PreparedGroups& prepared = *update.groups;
  UpdateInputs inputs{.gradient_divisor = prepared.gradient_divisor,
                      .skipped = update.skipped,
                      .skipped_bool = prepared.skipped_bool,
                      .rounding_seed = start_rounding_sequence(),
                      .tables = storage_->tables()};
  if (!prepared.steps.empty()) at::_foreach_add_(prepared.steps, prepared.increments);
  for (const auto& group : prepared.groups) {
    inputs.learning_rate = group.hyperparameters.get_learning_rate(rates);
    inputs.scratch = prepared.scratch.at(group.hyperparameters.rule).get();
    if (group.chunk) storage_->expand_chunk(group);
    rules_->get(group.hyperparameters.rule).apply(group, inputs);
    if (group.chunk) storage_->compress_chunk(group, prepared.skipped_bool);
  }
  if (!prepared.weights.empty()) at::_foreach_copy_(prepared.weights, prepared.masters);
  buckets_.reset();
  if (loss_scale_) loss_scale_->update(update.skipped);
  are_states_consistent_ = true;
}

at::Tensor Optimizer::step(const LearningRates& rates) {
  const OptimizerUpdate update = prepare(/*loss=*/{});
  apply_update(update, rates);
  return update.grad_norm;
}

at::Tensor Optimizer::loss_scale() const {
  return loss_scale_ ? loss_scale_->value() : at::Tensor();
}

int64_t Optimizer::host_bytes() const {
  return storage_->host_bytes();
}

int64_t Optimizer::count_trained_elements() const {
  int64_t elements = 0;
  for (const auto& parameter : storage_->parameters()) elements += parameter.parameter.numel();
  return elements;
}

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

namespace {

// As in torch.amp.GradScaler.
constexpr double kGrowthFactor = 2.0;
constexpr double kBackoffFactor = 0.5;

}  // namespace

LossScale::LossScale(const LossScaleSettings& settings, at::TensorOptions options)
    : settings_(settings),
      scale_(at::full({}, settings.init_scale, options.dtype(at::kFloat))),
      steps_without_overflow_(at::zeros({}, options.dtype(at::kInt))) {}

void LossScale::update(const at::Tensor& skipped) {
  if (!settings_.dynamic) return;
  at::_amp_update_scale_(scale_, steps_without_overflow_, skipped, kGrowthFactor, kBackoffFactor,
                         settings_.growth_interval);
}

std::vector<std::pair<std::string, at::Tensor>> LossScale::state() const {
  return {{"loss_scale", scale_}, {"loss_scale_good_steps", steps_without_overflow_}};
}

}  // namespace vlmtrain::engine
