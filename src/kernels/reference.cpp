#include "kernels/reference.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/silu_backward.h>

namespace vlmtrain::kernels::reference {

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

at::Tensor rotate(const at::Tensor& heads, const at::Tensor& cos, const at::Tensor& sin, double direction) {
  const auto halves = heads.to(at::kDouble).chunk(2, -1);
  const at::Tensor turned = sin * direction;
  return at::cat({halves[0] * cos - halves[1] * turned, halves[1] * cos + halves[0] * turned}, -1)
      .to(heads.scalar_type());
}

}  // namespace vlmtrain::kernels::reference
