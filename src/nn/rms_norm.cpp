#include "nn/rms_norm.h"

#include <ATen/OpMathType.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_fused_rms_norm.h>
#include <ATen/ops/_fused_rms_norm_backward.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/mul.h>

#include <optional>
#include <tuple>

namespace vlmtrain::nn {

namespace {

std::optional<at::Tensor> if_defined(const at::Tensor& tensor) {
  return tensor.defined() ? std::optional(tensor) : std::nullopt;
}

/// What at::_fused_rms_norm does, which has a kernel on CUDA only.
RmsNormed plain_rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  const auto precise = at::toOpMathType(x.scalar_type());
  const at::Tensor length = at::linalg_vector_norm(x, 2, /*dim=*/-1, /*keepdim=*/true, precise);
  const at::Tensor reciprocal = length.square().div_(static_cast<double>(x.size(-1))).add_(eps).rsqrt_();
  at::Tensor value = x * reciprocal;
  if (weight.defined()) value.mul_(weight);
  return {value.to(x.scalar_type()), reciprocal};
}

/// With r the reciprocal root of the mean square and ŷ = x r: dx = r (g w − ŷ mean(g w ŷ)), dw = Σ g ŷ over rows.
RmsNormGradients plain_rms_norm_backward(const at::Tensor& gradient, const at::Tensor& x, const at::Tensor& reciprocal,
                                         const at::Tensor& weight, bool x_wanted, bool weight_wanted) {
  const at::Tensor normalized = x * reciprocal;
  RmsNormGradients of;
  if (weight_wanted) {
    of.weight = (normalized * gradient).view({-1, x.size(-1)}).sum(0).to(weight.scalar_type());
  }
  if (x_wanted) {
    at::Tensor weighted = (weight.defined() ? gradient * weight : gradient).to(normalized.scalar_type());
    const at::Tensor mean = (weighted * normalized).mean(-1, /*keepdim=*/true);
    of.x = weighted.addcmul(normalized, mean, -1).mul_(reciprocal).to(x.scalar_type());
  }
  return of;
}

}  // namespace

RmsNormed rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  const at::NoGradGuard no_gradients;
  if (!x.is_cuda()) return plain_rms_norm(x, weight, eps);
  auto [value, reciprocal] = at::_fused_rms_norm(x, {x.size(-1)}, if_defined(weight), eps);
  return {value, reciprocal};
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

InitialValues unit_gain(NormGain gain) {
  return gain == NormGain::kWeight ? InitialValues::ones() : InitialValues::zeros();
}

RmsNormGradients rms_norm_backward(const at::Tensor& gradient, const at::Tensor& x, const at::Tensor& reciprocal,
                                   const at::Tensor& weight, bool x_wanted, bool weight_wanted) {
  if (!x.is_cuda()) return plain_rms_norm_backward(gradient, x, reciprocal, weight, x_wanted, weight_wanted);
  auto [of_x, of_weight] = at::_fused_rms_norm_backward(gradient, x, {x.size(-1)}, reciprocal, if_defined(weight),
                                                        {x_wanted, weight_wanted});
  return {of_x, of_weight};
}

}  // namespace vlmtrain::nn
