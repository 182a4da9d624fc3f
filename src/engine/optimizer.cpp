#include "vlmtrain/engine/optimizer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <memory>

#include "vlmtrain/base/error.h"

namespace vlmtrain::engine {

namespace {

/// Moves a 16-bit gradient into the fp32 sum as soon as the backward pass has made it.
class AddToSum : public torch::autograd::PostAccumulateGradHook {
 public:
  explicit AddToSum(at::Tensor sum) : sum_(std::move(sum)) {}

  void operator()(const at::Tensor& parameter) override {
    sum_.add_(parameter.grad());
    parameter.mutable_grad().reset();
  }

 private:
  at::Tensor sum_;
};

}  // namespace

struct AdamW::Entry {
  std::string name;
  nn::Component component;
  bool decays;
  at::Tensor weight;        // what the model computes with
  at::Tensor master;        // fp32; the same storage as `weight` if that is fp32
  at::Tensor sum;           // fp32 sum of 16-bit gradients; undefined with fp32 weights, whose `grad` is the sum
  at::Tensor first_moment;  // fp32
  at::Tensor second_moment;

  bool has_master() const { return sum.defined(); }

  at::Tensor gradient() const { return has_master() ? sum : weight.grad(); }
};

double LearningRates::of(nn::Component component) const {
  switch (component) {
    case nn::Component::kVisionTower:
      return vision_tower;
    case nn::Component::kProjector:
      return projector;
    case nn::Component::kLanguageModel:
      return language_model;
  }
  throw InternalError("unknown component");
}

AdamW::AdamW(const nn::ParameterStore& store, AdamWSettings settings) : settings_(settings) {
  const auto fp32 = store.options().dtype(at::kFloat);
  step_count_ = at::zeros({}, fp32);
  for (const auto& parameter : store.all()) {
    if (!parameter.tensor.requires_grad()) continue;
    Entry entry{parameter.name, parameter.component, parameter.tensor.dim() >= 2, parameter.tensor, {}, {}, {}, {}};
    entry.master = parameter.tensor.detach();
    if (parameter.tensor.scalar_type() != at::kFloat) {
      entry.master = entry.master.to(at::kFloat);
      entry.sum = at::zeros(parameter.tensor.sizes(), fp32);
      torch::autograd::impl::set_post_acc_grad_hooks(parameter.tensor, std::make_unique<AddToSum>(entry.sum));
    }
    entry.first_moment = at::zeros(parameter.tensor.sizes(), fp32);
    entry.second_moment = at::zeros(parameter.tensor.sizes(), fp32);
    entries_.push_back(std::move(entry));
  }
}

AdamW::~AdamW() {
  for (const auto& entry : entries_) {
    if (entry.has_master()) torch::autograd::impl::set_post_acc_grad_hooks(entry.weight, nullptr);
  }
}

at::Tensor AdamW::step(const LearningRates& rates) {
  const at::NoGradGuard no_gradients;
  std::vector<at::Tensor> gradients;
  for (auto& entry : entries_) {
    if (!entry.gradient().defined()) entry.weight.mutable_grad() = at::zeros_like(entry.weight);
    gradients.push_back(entry.gradient());
  }
  VLMTRAIN_CHECK(!gradients.empty(), "an optimizer without a trained parameter");
  const at::Tensor norm = at::linalg_vector_norm(at::stack(at::_foreach_norm(gradients, 2)), 2);
  // The fused kernel divides the gradients by this on the fly: max(1, norm / max_grad_norm), still on the device.
  at::Tensor divisor;
  if (settings_.max_grad_norm > 0) divisor = norm.div(settings_.max_grad_norm).clamp_min_(1.0);

  step_count_ += 1;
  struct Group {
    std::vector<at::Tensor> masters, gradients, first_moments, second_moments, steps;
  };
  std::map<std::pair<nn::Component, bool>, Group> groups;
  for (size_t i = 0; i < entries_.size(); ++i) {
    Group& group = groups[{entries_[i].component, entries_[i].decays}];
    group.masters.push_back(entries_[i].master);
    group.gradients.push_back(gradients[i]);
    group.first_moments.push_back(entries_[i].first_moment);
    group.second_moments.push_back(entries_[i].second_moment);
    group.steps.push_back(step_count_);
  }
  for (auto& [key, group] : groups) {
    const auto& [component, decays] = key;
    at::_fused_adamw_(group.masters, group.gradients, group.first_moments, group.second_moments,
                      /*max_exp_avg_sqs=*/{}, group.steps, rates.of(component), settings_.beta1, settings_.beta2,
                      decays ? settings_.weight_decay : 0.0, settings_.epsilon, /*amsgrad=*/false, /*maximize=*/false,
                      divisor.defined() ? std::optional{divisor} : std::nullopt);
  }
  refresh_weights();
  drop_gradients();
  return norm;
}

void AdamW::refresh_weights() {
  std::vector<at::Tensor> weights, masters;
  for (const auto& entry : entries_) {
    if (!entry.has_master()) continue;
    weights.push_back(entry.weight.detach());
    masters.push_back(entry.master);
  }
  if (!weights.empty()) at::_foreach_copy_(weights, masters);
}

void AdamW::drop_gradients() {
  for (auto& entry : entries_) {
    if (entry.has_master()) {
      entry.sum.zero_();
    } else {
      entry.weight.mutable_grad().reset();
    }
  }
}

at::Tensor AdamW::gradient(const std::string& name) const {
  for (const auto& entry : entries_) {
    if (entry.name == name) return entry.gradient();
  }
  throw InternalError(fmt::format("{} is not trained", name));
}

std::vector<std::pair<std::string, at::Tensor>> AdamW::state() const {
  std::vector<std::pair<std::string, at::Tensor>> tensors{{"step", step_count_}};
  for (const auto& entry : entries_) {
    tensors.emplace_back("first_moment." + entry.name, entry.first_moment);
    tensors.emplace_back("second_moment." + entry.name, entry.second_moment);
    if (entry.has_master()) tensors.emplace_back("master." + entry.name, entry.master);
  }
  return tensors;
}

void AdamW::load_state(const std::map<std::string, at::Tensor>& saved, const std::string& source) {
  const at::NoGradGuard no_gradients;
  const auto own = state();
  for (const auto& [name, tensor] : own) {
    const auto found = saved.find(name);
    if (found == saved.end() || found->second.sizes() != tensor.sizes()) {
      throw data_error(
          "{}: {} {}; the run's model, frozen parts and precision must be those that the checkpoint was made with",
          source, name, found == saved.end() ? "is missing" : "has another shape");
    }
  }
  if (saved.size() != own.size()) {
    throw data_error(
        "{}: holds {} tensors where this run has {}; the run's model, frozen parts and precision must be those that "
        "the "
        "checkpoint was made with",
        source, saved.size(), own.size());
  }
  for (const auto& [name, tensor] : own) tensor.copy_(saved.at(name));
  refresh_weights();
}

int64_t AdamW::trained_elements() const {
  int64_t elements = 0;
  for (const auto& entry : entries_) elements += entry.master.numel();
  return elements;
}

}  // namespace vlmtrain::engine
