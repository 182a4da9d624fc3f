#include "vlmtrain/nn/norm.h"

#include <ATen/OpMathType.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_fused_rms_norm.h>
#include <ATen/ops/_fused_rms_norm_backward.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/native_layer_norm_backward.h>

#include <memory>
#include <tuple>

namespace vlmtrain::nn {

namespace {

/// inputs: x, weight, bias.
class LayerNormPrologue : public Prologue {
 public:
  explicit LayerNormPrologue(double eps) : eps_(eps) {}

  Made make(const std::vector<at::Tensor>& inputs, bool /*for_backward*/) const override {
    const at::NoGradGuard no_gradients;
    auto [value, mean, reciprocal_deviation] =
        at::native_layer_norm(inputs[0], {inputs[0].size(-1)}, inputs[1], inputs[2], eps_);
    return {.value = value, .statistics = {mean, reciprocal_deviation}};
  }

  std::vector<at::Tensor> backward(const std::vector<at::Tensor>& inputs, const Made& made, const at::Tensor& gradient,
                                   const std::vector<bool>& wanted) const override {
    auto [x, weight, bias] =
        at::native_layer_norm_backward(gradient, inputs[0], {inputs[0].size(-1)}, made.statistics[0],
                                       made.statistics[1], inputs[1], inputs[2], {wanted[0], wanted[1], wanted[2]});
    return {x, weight, bias};
  }

 private:
  double eps_;
};

/// What at::_fused_rms_norm does, which has a kernel on CUDA only.
std::tuple<at::Tensor, at::Tensor> rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  const auto precise = at::toOpMathType(x.scalar_type());
  const at::Tensor length = at::linalg_vector_norm(x, 2, /*dim=*/-1, /*keepdim=*/true, precise);
  const at::Tensor reciprocal = length.square().div_(static_cast<double>(x.size(-1))).add_(eps).rsqrt_();
  return {(x * reciprocal).mul_(weight).to(x.scalar_type()), reciprocal};
}

/// With r the reciprocal root of the mean square and ŷ = x r: dx = r (g w − ŷ mean(g w ŷ)), dw = Σ g ŷ over rows.
std::tuple<at::Tensor, at::Tensor> rms_norm_backward(const at::Tensor& gradient, const at::Tensor& x,
                                                     const at::Tensor& reciprocal, const at::Tensor& weight,
                                                     bool x_wanted, bool weight_wanted) {
  const at::Tensor normalized = x * reciprocal;
  at::Tensor of_x, of_weight;
  if (weight_wanted) of_weight = (normalized * gradient).sum(0).to(weight.scalar_type());
  if (x_wanted) {
    at::Tensor weighted = (gradient * weight).to(normalized.scalar_type());
    const at::Tensor mean = (weighted * normalized).mean(-1, /*keepdim=*/true);
    of_x = weighted.addcmul_(normalized, mean, -1).mul_(reciprocal).to(x.scalar_type());
  }
  return {of_x, of_weight};
}

/// inputs: x, weight.
class RmsNormPrologue : public Prologue {
 public:
  explicit RmsNormPrologue(double eps) : eps_(eps) {}

  Made make(const std::vector<at::Tensor>& inputs, bool /*for_backward*/) const override {
    const at::NoGradGuard no_gradients;
    const at::Tensor& x = inputs[0];
    auto [value, reciprocal] =
        x.is_cuda() ? at::_fused_rms_norm(x, {x.size(-1)}, inputs[1], eps_) : rms_norm(x, inputs[1], eps_);
    return {.value = value, .statistics = {reciprocal}};
  }

  std::vector<at::Tensor> backward(const std::vector<at::Tensor>& inputs, const Made& made, const at::Tensor& gradient,
                                   const std::vector<bool>& wanted) const override {
    const at::Tensor& x = inputs[0];
    auto [of_x, of_weight] = x.is_cuda()
                                 ? at::_fused_rms_norm_backward(gradient, x, {x.size(-1)}, made.statistics[0],
                                                                inputs[1], {wanted[0], wanted[1]})
                                 : rms_norm_backward(gradient, x, made.statistics[0], inputs[1], wanted[0], wanted[1]);
    return {of_x, of_weight};
  }

 private:
  double eps_;
};

}  // namespace

LayerNorm::LayerNorm(const ParameterScope& scope, int64_t features, double eps)
    : weight_(scope.parameter("weight", {features}, InitialValues::ones())),
      bias_(scope.parameter("bias", {features}, InitialValues::zeros())),
      eps_(eps) {}

Operand LayerNorm::before_linears(const at::Tensor& x) const {
  return {std::make_shared<LayerNormPrologue>(eps_), {x, weight_, bias_}};
}

RmsNorm::RmsNorm(const ParameterScope& scope, int64_t features, double eps)
    : weight_(scope.parameter("weight", {features}, InitialValues::ones())), eps_(eps) {}

Operand RmsNorm::before_linears(const at::Tensor& x) const {
  return {std::make_shared<RmsNormPrologue>(eps_), {x, weight_}};
}

}  // namespace vlmtrain::nn
