#include "vlmtrain/nn/norm.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/addcmul.h>
#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/native_layer_norm_backward.h>

#include <memory>
#include <utility>

#include "nn/rms_norm.h"

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

/// inputs: x, weight.
class RmsNormPrologue : public Prologue {
 public:
  explicit RmsNormPrologue(double eps) : eps_(eps) {}

  Made make(const std::vector<at::Tensor>& inputs, bool /*for_backward*/) const override {
    const RmsNormed normed = rms_norm(inputs[0], inputs[1], eps_);
    return {.value = normed.value, .statistics = {normed.reciprocal}};
  }

  std::vector<at::Tensor> backward(const std::vector<at::Tensor>& inputs, const Made& made, const at::Tensor& gradient,
                                   const std::vector<bool>& wanted) const override {
    const RmsNormGradients of =
        rms_norm_backward(gradient, inputs[0], made.statistics[0], inputs[1], wanted[0], wanted[1]);
    return {of.x, of.weight};
  }

 private:
  double eps_;
};

/// inputs: x, weight. The kernel norms without a weight, whose product with the rounded result is rounded once more.
class OnePlusRmsNormPrologue : public Prologue {
 public:
  explicit OnePlusRmsNormPrologue(double eps) : eps_(eps) {}

  Made make(const std::vector<at::Tensor>& inputs, bool /*for_backward*/) const override {
    const at::NoGradGuard no_gradients;
    RmsNormed normed = rms_norm(inputs[0], {}, eps_);
    multiply_by_gain(normed.value, inputs[1], NormGain::kOnePlusWeight);
    return {.value = normed.value, .statistics = {normed.reciprocal}};
  }

  std::vector<at::Tensor> backward(const std::vector<at::Tensor>& inputs, const Made& made, const at::Tensor& gradient,
                                   const std::vector<bool>& wanted) const override {
    at::Tensor of_x, of_weight;
    if (wanted[1]) {
      of_weight = rms_norm_backward(gradient, inputs[0], made.statistics[0], inputs[1], false, true).weight;
    }
    if (wanted[0]) {
      const at::Tensor of_normed = at::addcmul(gradient, gradient, inputs[1]);
      of_x = rms_norm_backward(of_normed, inputs[0], made.statistics[0], {}, true, false).x;
    }
    return {std::move(of_x), std::move(of_weight)};
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

RmsNorm::RmsNorm(const ParameterScope& scope, int64_t features, double eps, NormGain gain)
    : weight_(scope.parameter("weight", {features}, unit_gain(gain))), eps_(eps), gain_(gain) {}

Operand RmsNorm::before_linears(const at::Tensor& x) const {
  if (gain_ == NormGain::kOnePlusWeight) return {std::make_shared<OnePlusRmsNormPrologue>(eps_), {x, weight_}};
  return {std::make_shared<RmsNormPrologue>(eps_), {x, weight_}};
}

}  // namespace vlmtrain::nn
