#include "engine/optimizer/adamw.h"

#include <ATen/ops/_fused_adamw.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "vlmtrain/kernels/adamw.h"
#include "vlmtrain/kernels/kernels.h"

namespace vlmtrain::engine {

namespace {

constexpr const char* kFirstMoment = "first_moment";

std::optional<at::Tensor> to_optional(const at::Tensor& tensor) {
  return tensor.defined() ? std::optional{tensor} : std::nullopt;
}

/// AdamW by the custom kernel, or else by ATen's fused kernel.
class AdamW final : public UpdateRule {
 public:
  explicit AdamW(const OptimizerSettings& settings) : settings_(settings.adamw) {}

  std::vector<std::string> moment_names() const override { return {kFirstMoment, "second_moment"}; }

  /// The custom kernel does not support fp64 weights, which tests use.
  bool is_fused(const at::Tensor& weight) const override {
    return kernels::is_available(kernels::Kernel::kAdamW, weight);
  }

  void apply(const UpdateGroup& group, const UpdateInputs& inputs) const override {
    if (group.is_fused) {
      apply_custom_kernel(group, inputs);
    } else {
      apply_aten_kernel(group, inputs);
    }
  }

 private:
  void apply_custom_kernel(const UpdateGroup& group, const UpdateInputs& inputs) const {
    kernels::AdamWStep step{.learning_rate = inputs.learning_rate,
                            .beta1 = settings_.beta1,
                            .beta2 = settings_.beta2,
                            .epsilon = settings_.epsilon,
                            .weight_decay = group.hyperparameters.weight_decay,
                            .divisor = inputs.gradient_divisor,
                            .skip_flag = inputs.skipped,
                            .seed = inputs.rounding_seed};
    if (inputs.tables != nullptr) {
      step.code_values = inputs.tables->codebooks;
      step.rounding_bounds = inputs.tables->padded_bounds;
    }
    std::vector<kernels::AdamWParameter> parameters;
    parameters.reserve(group.tensors.size());
    for (const auto& tensor : group.tensors) {
      auto& parameter = parameters.emplace_back(kernels::AdamWParameter{.master = tensor.master,
                                                                        .gradient = tensor.gradient,
                                                                        .weight = tensor.weight,
                                                                        .steps = tensor.steps,
                                                                        .tensor_id = tensor.parameter_index});
      std::ranges::copy(tensor.moments, parameter.moments.begin());
      std::ranges::copy(tensor.absmax, parameter.absmax.begin());
    }
    kernels::adamw(parameters, step);
  }

  void apply_aten_kernel(const UpdateGroup& group, const UpdateInputs& inputs) const {
    std::vector<at::Tensor> masters, gradients, first_moments, second_moments, steps;
    for (const auto& tensor : group.tensors) {
      masters.push_back(tensor.master);
      gradients.push_back(tensor.gradient);
      first_moments.push_back(tensor.moments.at(0));
      second_moments.push_back(tensor.moments.at(1));
      steps.push_back(tensor.steps);
    }
    at::_fused_adamw_(masters, gradients, first_moments, second_moments, /*max_exp_avg_sqs=*/{}, steps,
                      inputs.learning_rate, settings_.beta1, settings_.beta2, group.hyperparameters.weight_decay,
                      settings_.epsilon, /*amsgrad=*/false, /*maximize=*/false, to_optional(inputs.gradient_divisor),
                      /*found_inf=*/inputs.skipped);
  }

  AdamWSettings settings_;
};

}  // namespace

const UpdateRuleEntry kAdamWRule{.kind = OptimizerKind::kAdamW,
                                 .first_moment_name = kFirstMoment,
                                 .can_update = [](const nn::Parameter& /*parameter*/) { return true; },
                                 .make = [](const OptimizerSettings& settings) -> std::unique_ptr<UpdateRule> {
                                   return std::make_unique<AdamW>(settings);
                                 }};

}  // namespace vlmtrain::engine
