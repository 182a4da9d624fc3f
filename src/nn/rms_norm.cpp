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

std::optional<at::Tensor> to_optional(const at::Tensor& tensor) {
  return tensor.defined() ? std::optional(tensor) : std::nullopt;
}

/// What at::_fused_rms_norm does, which has a kernel on CUDA only.
RmsNormResult rms_norm_composite(const at::Tensor& x, const at::Tensor& weight, double eps) {
  const auto accumulate_type = at::toOpMathType(x.scalar_type());
  const at::Tensor length = at::linalg_vector_norm(x, 2, /*dim=*/-1, /*keepdim=*/true, accumulate_type);
  const at::Tensor rstd = length.square().div_(static_cast<double>(x.size(-1))).add_(eps).rsqrt_();
  at::Tensor value = x * rstd;
  if (weight.defined()) value.mul_(weight);
  return {value.to(x.scalar_type()), rstd};
}

/// With r the reciprocal root of the mean square and ŷ = x r: dx = r (g w − ŷ mean(g w ŷ)), dw = Σ g ŷ over rows.
RmsNormGradients rms_norm_backward_composite(const at::Tensor& gradient, const at::Tensor& x, const at::Tensor& rstd,
                                             const at::Tensor& weight, bool needs_dx, bool needs_dweight) {
  const at::Tensor normalized = x * rstd;
  RmsNormGradients gradients;
  if (needs_dweight) {
    gradients.weight = (normalized * gradient).view({-1, x.size(-1)}).sum(0).to(weight.scalar_type());
  }
  if (needs_dx) {
    at::Tensor weighted = (weight.defined() ? gradient * weight : gradient).to(normalized.scalar_type());
    const at::Tensor mean = (weighted * normalized).mean(-1, /*keepdim=*/true);
    gradients.x = weighted.addcmul(normalized, mean, -1).mul_(rstd).to(x.scalar_type());
  }
  return gradients;
}

}  // namespace

RmsNormResult rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  const at::NoGradGuard no_gradients;
  if (!x.is_cuda()) return rms_norm_composite(x, weight, eps);
  auto [value, rstd] = at::_fused_rms_norm(x, {x.size(-1)}, to_optional(weight), eps);
  return {value, rstd};
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

RmsNormGradients rms_norm_backward(const at::Tensor& gradient, const at::Tensor& x, const at::Tensor& rstd,
                                   const at::Tensor& weight, bool needs_dx, bool needs_dweight) {
  if (!x.is_cuda()) return rms_norm_backward_composite(gradient, x, rstd, weight, needs_dx, needs_dweight);
  auto [dx, dweight] =
      at::_fused_rms_norm_backward(gradient, x, {x.size(-1)}, rstd, to_optional(weight), {needs_dx, needs_dweight});
  return {dx, dweight};
}

}  // namespace vlmtrain::nn
