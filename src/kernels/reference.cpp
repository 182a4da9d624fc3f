#include "kernels/reference.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/silu_backward.h>

#include "vlmtrain/base/error.h"

namespace vlmtrain::kernels::reference {

namespace {

constexpr double kQuickGeluSteepness = 1.702;

at::Tensor rotated(const at::Tensor& heads, const at::Tensor& cos, const at::Tensor& sin, double direction) {
  const auto halves = heads.chunk(2, -1);
  const at::Tensor turned = sin * direction;
  return at::cat({halves[0] * cos - halves[1] * turned, halves[1] * cos + halves[0] * turned}, -1);
}

at::Tensor reciprocal_of(const at::Tensor& x, double eps) {
  return x.square().mean(-1, /*keepdim=*/true).add_(eps).rsqrt_();
}

at::Tensor factor(const at::Tensor& weight, Gain gain) {
  const at::Tensor exact = weight.to(at::kDouble);
  return gain == Gain::kOnePlusWeight ? exact + 1 : exact;
}

}  // namespace

at::Tensor gate(const at::Tensor& x, GateActivation activation) {
  const auto halves = x.to(at::kDouble).chunk(2, -1);
  const at::Tensor opened = activation == GateActivation::kSilu ? at::silu(halves[0]) : at::gelu(halves[0], "tanh");
  return (opened * halves[1]).to(x.scalar_type());
}

at::Tensor gate_backward(const at::Tensor& gradient, const at::Tensor& x, GateActivation activation) {
  const auto halves = x.to(at::kDouble).chunk(2, -1);
  const at::Tensor of_opened = gradient.to(at::kDouble) * halves[1];
  const bool is_silu = activation == GateActivation::kSilu;
  const at::Tensor opened = is_silu ? at::silu(halves[0]) : at::gelu(halves[0], "tanh");
  const at::Tensor of_gate =
      is_silu ? at::silu_backward(of_opened, halves[0]) : at::gelu_backward(of_opened, halves[0], "tanh");
  return at::cat({of_gate, gradient.to(at::kDouble) * opened}, -1).to(x.scalar_type());
}

at::Tensor activate(const at::Tensor& x, ActivationFunction function) {
  const at::Tensor exact = x.to(at::kDouble);
  const auto value = [&] {
    switch (function) {
      case ActivationFunction::kGelu:
        return at::gelu(exact);
      case ActivationFunction::kGeluTanh:
        return at::gelu(exact, "tanh");
      case ActivationFunction::kQuickGelu:
        return exact * (exact * kQuickGeluSteepness).sigmoid();
      case ActivationFunction::kRelu:
        return exact.clamp_min(0);
    }
    throw InternalError("unknown activation");
  };
  return value().to(x.scalar_type());
}

at::Tensor activation_backward(const at::Tensor& gradient, const at::Tensor& x, ActivationFunction function) {
  const at::Tensor exact = x.to(at::kDouble), of_value = gradient.to(at::kDouble);
  const auto of_x = [&] {
    switch (function) {
      case ActivationFunction::kGelu:
        return at::gelu_backward(of_value, exact);
      case ActivationFunction::kGeluTanh:
        return at::gelu_backward(of_value, exact, "tanh");
      case ActivationFunction::kQuickGelu:
        return at::silu_backward(of_value, exact * kQuickGeluSteepness);
      case ActivationFunction::kRelu:
        return of_value * exact.gt(0);
    }
    throw InternalError("unknown activation");
  };
  return of_x().to(x.scalar_type());
}

at::Tensor rotate(const at::Tensor& heads, const at::Tensor& cos, const at::Tensor& sin, double direction) {
  return rotated(heads.to(at::kDouble), cos, sin, direction).to(heads.scalar_type());
}

at::Tensor norm_rotate(const at::Tensor& heads, const at::Tensor& weight, Gain gain, double eps, const at::Tensor& cos,
                       const at::Tensor& sin) {
  const at::Tensor x = heads.to(at::kDouble);
  return rotated(x * reciprocal_of(x, eps) * factor(weight, gain), cos, sin, 1).to(heads.scalar_type());
}

NormRotateGradients norm_rotate_backward(const at::Tensor& gradient, const at::Tensor& heads, const at::Tensor& weight,
                                         Gain gain, double eps, const at::Tensor& cos, const at::Tensor& sin) {
  const at::Tensor x = heads.to(at::kDouble), reciprocal = reciprocal_of(x, eps), normed = x * reciprocal;
  const at::Tensor of_gained = rotated(gradient.to(at::kDouble), cos, sin, -1);
  const at::Tensor of_normed = of_gained * factor(weight, gain);
  const at::Tensor of_x = reciprocal * (of_normed - normed * (of_normed * normed).mean(-1, /*keepdim=*/true));
  return {of_x.to(heads.scalar_type()), (of_gained * normed).sum(at::IntArrayRef{0, 1}).to(weight.scalar_type())};
}

}  // namespace vlmtrain::kernels::reference
