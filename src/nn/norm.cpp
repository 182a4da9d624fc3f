#include "vlmtrain/nn/norm.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/addcmul.h>
#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/native_layer_norm_backward.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <utility>

#include "nn/rms_norm.h"
#include "vlmtrain/kernels/norm.h"

namespace vlmtrain::nn {

namespace {

/// inputs: x, weight, and of a LayerNorm a bias. Our own kernel where there is one, ATen's operations else; of the
/// weights' gradients theirs anyway.
class NormPrologue : public Prologue {
 public:
  Made make(const std::vector<at::Tensor>& inputs, bool /*for_backward*/) const final { return make_onto(inputs, {}); }

  Made make_onto(const std::vector<at::Tensor>& inputs, const at::Tensor& residual) const final {
    const at::NoGradGuard no_gradients;
    const kernels::Norm norm = norm_of(inputs);
    if (kernels::can_norm(inputs[0], norm)) {
      auto [value, statistics] = kernels::norm(inputs[0], norm, residual);
      if (!norm.is_centered) return {.value = value, .statistics = {statistics.reciprocal}};
      return {.value = value, .statistics = {statistics.mean, statistics.reciprocal}};
    }
    Made made = make_by_aten(inputs);
    if (residual.defined()) made.value.add_(residual);
    return made;
  }

  std::vector<at::Tensor> backward(const std::vector<at::Tensor>& inputs, const Made& made, const at::Tensor& gradient,
                                   const std::vector<bool>& wanted) const final {
    return backward_beside(inputs, made, gradient, wanted, {});
  }

  std::vector<at::Tensor> backward_beside(const std::vector<at::Tensor>& inputs, const Made& made,
                                          const at::Tensor& gradient, const std::vector<bool>& wanted,
                                          const at::Tensor& passing) const final {
    const kernels::Norm norm = norm_of(inputs);
    if (!kernels::can_norm(inputs[0], norm)) {
      auto gradients = backward_by_aten(inputs, made, gradient, wanted);
      if (passing.defined()) gradients[0].add_(passing);
      return gradients;
    }
    std::vector<at::Tensor> gradients(inputs.size());
    std::vector<bool> of_weights = wanted;
    of_weights[0] = false;
    if (std::ranges::any_of(of_weights, std::identity())) {
      gradients = backward_by_aten(inputs, made, gradient, of_weights);
    }
    if (wanted[0]) gradients[0] = kernels::norm_backward(gradient, inputs[0], statistics_of(made), norm, passing);
    return gradients;
  }

 protected:
  NormPrologue(bool is_centered, NormGain gain, double eps) : is_centered_(is_centered), gain_(gain), eps_(eps) {}

  double eps() const { return eps_; }

 private:
  virtual Made make_by_aten(const std::vector<at::Tensor>& inputs) const = 0;
  virtual std::vector<at::Tensor> backward_by_aten(const std::vector<at::Tensor>& inputs, const Made& made,
                                                   const at::Tensor& gradient,
                                                   const std::vector<bool>& wanted) const = 0;

  kernels::Norm norm_of(const std::vector<at::Tensor>& inputs) const {
    return {.weight = inputs[1],
            .bias = inputs.size() > 2 ? inputs[2] : at::Tensor(),
            .gain = gain_ == NormGain::kWeight ? kernels::Gain::kWeight : kernels::Gain::kOnePlusWeight,
            .is_centered = is_centered_,
            .eps = eps_};
  }

  kernels::NormStatistics statistics_of(const Made& made) const {
    return {.mean = is_centered_ ? made.statistics.front() : at::Tensor(), .reciprocal = made.statistics.back()};
  }

  bool is_centered_;
  NormGain gain_;
  double eps_;
};

class LayerNormPrologue final : public NormPrologue {
 public:
  explicit LayerNormPrologue(double eps) : NormPrologue(/*is_centered=*/true, NormGain::kWeight, eps) {}

 private:
  Made make_by_aten(const std::vector<at::Tensor>& inputs) const override {
    auto [value, mean, reciprocal_deviation] =
        at::native_layer_norm(inputs[0], {inputs[0].size(-1)}, inputs[1], inputs[2], eps());
    return {.value = value, .statistics = {mean, reciprocal_deviation}};
  }

  std::vector<at::Tensor> backward_by_aten(const std::vector<at::Tensor>& inputs, const Made& made,
                                           const at::Tensor& gradient, const std::vector<bool>& wanted) const override {
    auto [x, weight, bias] =
        at::native_layer_norm_backward(gradient, inputs[0], {inputs[0].size(-1)}, made.statistics[0],
                                       made.statistics[1], inputs[1], inputs[2], {wanted[0], wanted[1], wanted[2]});
    return {x, weight, bias};
  }
};

class RmsNormPrologue final : public NormPrologue {
 public:
  explicit RmsNormPrologue(double eps) : NormPrologue(/*is_centered=*/false, NormGain::kWeight, eps) {}

 private:
  Made make_by_aten(const std::vector<at::Tensor>& inputs) const override {
    const RmsNormed normed = rms_norm(inputs[0], inputs[1], eps());
    return {.value = normed.value, .statistics = {normed.reciprocal}};
  }

  std::vector<at::Tensor> backward_by_aten(const std::vector<at::Tensor>& inputs, const Made& made,
                                           const at::Tensor& gradient, const std::vector<bool>& wanted) const override {
    const RmsNormGradients of =
        rms_norm_backward(gradient, inputs[0], made.statistics[0], inputs[1], wanted[0], wanted[1]);
    return {of.x, of.weight};
  }
};

/// ATen's kernel norms without a weight, whose product with the rounded result is rounded once more.
class OnePlusRmsNormPrologue final : public NormPrologue {
 public:
  explicit OnePlusRmsNormPrologue(double eps) : NormPrologue(/*is_centered=*/false, NormGain::kOnePlusWeight, eps) {}

 private:
  Made make_by_aten(const std::vector<at::Tensor>& inputs) const override {
    RmsNormed normed = rms_norm(inputs[0], {}, eps());
    multiply_by_gain(normed.value, inputs[1], NormGain::kOnePlusWeight);
    return {.value = normed.value, .statistics = {normed.reciprocal}};
  }

  std::vector<at::Tensor> backward_by_aten(const std::vector<at::Tensor>& inputs, const Made& made,
                                           const at::Tensor& gradient, const std::vector<bool>& wanted) const override {
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
