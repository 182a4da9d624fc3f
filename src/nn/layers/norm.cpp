#include "vlmtrain/nn/layers/norm.h"

#include <ATen/OpMathType.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_fused_rms_norm.h>
#include <ATen/ops/_fused_rms_norm_backward.h>
#include <ATen/ops/addcmul.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/native_layer_norm_backward.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>

#include "vlmtrain/kernels/norm.h"

namespace vlmtrain::nn {

namespace {

std::optional<at::Tensor> to_optional(const at::Tensor& tensor) {
  return tensor.defined() ? std::optional(tensor) : std::nullopt;
}

/// Computes at::_fused_rms_norm, which has only a CUDA kernel, with other operations.
RmsNormResult rms_norm_composite(const at::Tensor& x, const at::Tensor& weight, double eps) {
  const auto accumulate_type = at::toOpMathType(x.scalar_type());
  const at::Tensor l2_norm = at::linalg_vector_norm(x, 2, /*dim=*/-1, /*keepdim=*/true, accumulate_type);
  const at::Tensor rstd = l2_norm.square().div_(static_cast<double>(x.size(-1))).add_(eps).rsqrt_();
  at::Tensor value = x * rstd;
  if (weight.defined()) value.mul_(weight);
  return {value.to(x.scalar_type()), rstd};
}

/// Computes dx = r (g w − x̂ mean(g w x̂)) and dw = Σ g x̂ over rows, for the gradient g, the
/// weight w, r = rstd and x̂ = x r.
RmsNormGradients rms_norm_backward_composite(const at::Tensor& gradient, const at::Tensor& x, const at::Tensor& rstd,
                                             const at::Tensor& weight, bool needs_dx, bool needs_dweight) {
  const at::Tensor normalized = x * rstd;
  RmsNormGradients gradients;
  if (needs_dweight) {
    gradients.dweight = (normalized * gradient).view({-1, x.size(-1)}).sum(0).to(weight.scalar_type());
  }
  if (needs_dx) {
    at::Tensor weighted_gradient = (weight.defined() ? gradient * weight : gradient).to(normalized.scalar_type());
    const at::Tensor mean = (weighted_gradient * normalized).mean(-1, /*keepdim=*/true);
    gradients.dx = weighted_gradient.addcmul(normalized, mean, -1).mul_(rstd).to(x.scalar_type());
  }
  return gradients;
}

/// A norm as prologue of Linears. Its inputs are x, weight, and for a LayerNorm bias; its
/// statistics are mean (LayerNorm only) and rstd. Uses a custom kernel if available, else ATen.
/// Gradients of weight and bias always use ATen.
class NormPrologue : public FusedPrologue {
 public:
  Output forward(const std::vector<at::Tensor>& inputs, bool /*for_backward*/) const final {
    return forward_add_residual(inputs, {});
  }

  Output forward_with_border(const std::vector<at::Tensor>& inputs, int64_t border_columns) const final {
    const kernels::NormParams norm = make_kernel_norm(inputs);
    if (!kernels::can_run_norm(inputs[0], norm)) return FusedPrologue::forward_with_border(inputs, border_columns);
    return run_kernel(inputs[0], norm, {}, border_columns);
  }

  Output forward_add_residual(const std::vector<at::Tensor>& inputs, const at::Tensor& residual) const final {
    const at::NoGradGuard no_gradients;
    const kernels::NormParams norm = make_kernel_norm(inputs);
    if (kernels::can_run_norm(inputs[0], norm)) return run_kernel(inputs[0], norm, residual, /*border_columns=*/0);
    Output output = forward_aten(inputs);
    if (residual.defined()) output.value.add_(residual);
    return output;
  }

  std::vector<at::Tensor> backward(const std::vector<at::Tensor>& inputs, const Output& output,
                                   const at::Tensor& gradient, const std::vector<bool>& needs_grad) const final {
    return backward_add_residual_gradient(inputs, output, gradient, needs_grad, {});
  }

  std::vector<at::Tensor> backward_add_residual_gradient(const std::vector<at::Tensor>& inputs, const Output& output,
                                                         const at::Tensor& gradient,
                                                         const std::vector<bool>& needs_grad,
                                                         const at::Tensor& residual_stream_gradient) const final {
    const kernels::NormParams norm = make_kernel_norm(inputs);
    if (!kernels::can_run_norm(inputs[0], norm)) {
      auto gradients = backward_aten(inputs, output, gradient, needs_grad);
      if (residual_stream_gradient.defined()) gradients[0].add_(residual_stream_gradient);
      return gradients;
    }
    std::vector<at::Tensor> gradients(inputs.size());
    std::vector<bool> needs_weight_grad = needs_grad;
    needs_weight_grad[0] = false;
    if (std::ranges::any_of(needs_weight_grad, std::identity())) {
      gradients = backward_aten(inputs, output, gradient, needs_weight_grad);
    }
    if (needs_grad[0])
      gradients[0] =
          kernels::norm_backward(gradient, inputs[0], get_statistics(output), norm, residual_stream_gradient);
    return gradients;
  }

 protected:
  NormPrologue(bool is_centered, NormGain gain, double eps) : is_centered_(is_centered), gain_(gain), eps_(eps) {}

  double eps() const { return eps_; }

 private:
  virtual Output forward_aten(const std::vector<at::Tensor>& inputs) const = 0;
  virtual std::vector<at::Tensor> backward_aten(const std::vector<at::Tensor>& inputs, const Output& output,
                                                const at::Tensor& gradient,
                                                const std::vector<bool>& needs_grad) const = 0;

  static Output run_kernel(const at::Tensor& x, const kernels::NormParams& norm, const at::Tensor& residual,
                           int64_t border_columns) {
    const at::NoGradGuard no_gradients;
    auto [value, statistics] = kernels::norm(x, norm, residual, border_columns);
    if (!norm.is_centered) return {.value = value, .statistics = {statistics.rstd}};
    return {.value = value, .statistics = {statistics.mean, statistics.rstd}};
  }

  kernels::NormParams make_kernel_norm(const std::vector<at::Tensor>& inputs) const {
    return {.weight = inputs[1],
            .bias = inputs.size() > 2 ? inputs[2] : at::Tensor(),
            .gain = gain_ == NormGain::kWeight ? kernels::NormGain::kWeight : kernels::NormGain::kOnePlusWeight,
            .is_centered = is_centered_,
            .eps = eps_};
  }

  kernels::NormStatistics get_statistics(const Output& output) const {
    return {.mean = is_centered_ ? output.statistics.front() : at::Tensor(), .rstd = output.statistics.back()};
  }

  bool is_centered_;
  NormGain gain_;
  double eps_;
};

class LayerNormPrologue final : public NormPrologue {
 public:
  explicit LayerNormPrologue(double eps) : NormPrologue(/*is_centered=*/true, NormGain::kWeight, eps) {}

 private:
  Output forward_aten(const std::vector<at::Tensor>& inputs) const override {
    auto [value, mean, rstd] = at::native_layer_norm(inputs[0], {inputs[0].size(-1)}, inputs[1], inputs[2], eps());
    return {.value = value, .statistics = {mean, rstd}};
  }

  std::vector<at::Tensor> backward_aten(const std::vector<at::Tensor>& inputs, const Output& output,
                                        const at::Tensor& gradient,
                                        const std::vector<bool>& needs_grad) const override {
    auto [x, weight, bias] = at::native_layer_norm_backward(gradient, inputs[0], {inputs[0].size(-1)},
                                                            output.statistics[0], output.statistics[1], inputs[1],
                                                            inputs[2], {needs_grad[0], needs_grad[1], needs_grad[2]});
    return {x, weight, bias};
  }
};

class RmsNormPrologue final : public NormPrologue {
 public:
  explicit RmsNormPrologue(double eps) : NormPrologue(/*is_centered=*/false, NormGain::kWeight, eps) {}

 private:
  Output forward_aten(const std::vector<at::Tensor>& inputs) const override {
    const RmsNormResult normed = rms_norm(inputs[0], inputs[1], eps());
    return {.value = normed.value, .statistics = {normed.rstd}};
  }

  std::vector<at::Tensor> backward_aten(const std::vector<at::Tensor>& inputs, const Output& output,
                                        const at::Tensor& gradient,
                                        const std::vector<bool>& needs_grad) const override {
    const RmsNormGradients gradients =
        rms_norm_backward(gradient, inputs[0], output.statistics[0], inputs[1], needs_grad[0], needs_grad[1]);
    return {gradients.dx, gradients.dweight};
  }
};

/// An RMS norm with gain 1 + weight. ATen's kernel has no such gain, so it runs without a weight
/// and its rounded result is multiplied by the gain and rounded again.
class OnePlusRmsNormPrologue final : public NormPrologue {
 public:
  explicit OnePlusRmsNormPrologue(double eps) : NormPrologue(/*is_centered=*/false, NormGain::kOnePlusWeight, eps) {}

 private:
  Output forward_aten(const std::vector<at::Tensor>& inputs) const override {
    RmsNormResult normed = rms_norm(inputs[0], {}, eps());
    multiply_by_gain(normed.value, inputs[1], NormGain::kOnePlusWeight);
    return {.value = normed.value, .statistics = {normed.rstd}};
  }

  std::vector<at::Tensor> backward_aten(const std::vector<at::Tensor>& inputs, const Output& output,
                                        const at::Tensor& gradient,
                                        const std::vector<bool>& needs_grad) const override {
    at::Tensor dx, dweight;
    if (needs_grad[1]) {
      dweight = rms_norm_backward(gradient, inputs[0], output.statistics[0], inputs[1], false, true).dweight;
    }
    if (needs_grad[0]) {
      const at::Tensor dnormed = at::addcmul(gradient, gradient, inputs[1]);
      dx = rms_norm_backward(dnormed, inputs[0], output.statistics[0], {}, true, false).dx;
    }
    return {std::move(dx), std::move(dweight)};
  }
};

struct UnweightedRmsNormFunction : torch::autograd::Function<UnweightedRmsNormFunction> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, double eps) {
    const at::Tensor rows = x.contiguous();
    auto [value, rstd] = rms_norm(rows, {}, eps);
    context->save_for_backward({rows, rstd});
    return value;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    return {rms_norm_backward(gradients[0].contiguous(), saved[0], saved[1], {}, true, false).dx, {}};
  }
};

}  // namespace

RmsNormResult rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  const at::NoGradGuard no_gradients;
  if (!x.is_cuda()) return rms_norm_composite(x, weight, eps);
  auto [value, rstd] = at::_fused_rms_norm(x, {x.size(-1)}, to_optional(weight), eps);
  return {value, rstd};
}

at::Tensor rms_norm_without_weight(const at::Tensor& x, double eps) {
  return UnweightedRmsNormFunction::apply(x, eps);
}

void multiply_by_gain(at::Tensor& value, const at::Tensor& weight, NormGain gain) {
  switch (gain) {
    case NormGain::kWeight:
      value.mul_(weight);
      return;
    case NormGain::kOnePlusWeight:
      value.addcmul_(value, weight);  // in fp32, rounded once
      return;
  }
}

InitialValues make_unit_gain_values(NormGain gain) {
  return gain == NormGain::kWeight ? InitialValues::ones() : InitialValues::zeros();
}

RmsNormGradients rms_norm_backward(const at::Tensor& gradient, const at::Tensor& x, const at::Tensor& rstd,
                                   const at::Tensor& weight, bool needs_dx, bool needs_dweight) {
  if (!x.is_cuda()) return rms_norm_backward_composite(gradient, x, rstd, weight, needs_dx, needs_dweight);
  auto [dx, dweight] =
      at::_fused_rms_norm_backward(gradient, x, {x.size(-1)}, rstd, to_optional(weight), {needs_dx, needs_dweight});
  return {dx, dweight};
}

LayerNorm::LayerNorm(const ParameterScope& scope, int64_t features, double eps)
    : weight_(scope.add_parameter("weight", {features}, InitialValues::ones())),
      bias_(scope.add_parameter("bias", {features}, InitialValues::zeros())),
      eps_(eps) {}

LinearInput LayerNorm::make_linear_input(const at::Tensor& x) const {
  return {std::make_shared<LayerNormPrologue>(eps_), {x, weight_, bias_}};
}

RmsNorm::RmsNorm(const ParameterScope& scope, int64_t features, double eps, NormGain gain)
    : weight_(scope.add_parameter("weight", {features}, make_unit_gain_values(gain))), eps_(eps), gain_(gain) {}

LinearInput RmsNorm::make_linear_input(const at::Tensor& x) const {
  if (gain_ == NormGain::kOnePlusWeight) return {std::make_shared<OnePlusRmsNormPrologue>(eps_), {x, weight_}};
  return {std::make_shared<RmsNormPrologue>(eps_), {x, weight_}};
}

}  // namespace vlmtrain::nn
