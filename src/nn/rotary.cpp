#include "vlmtrain/nn/rotary.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/pow.h>
#include <torch/csrc/autograd/custom_function.h>

namespace vlmtrain::nn {

namespace {

/// `direction` 1 rotates by the angle, −1 back: the gradient of a rotation is the rotation back.
at::Tensor rotate(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, double direction) {
  const int64_t half = x.size(-1) / 2;
  const at::Tensor first = x.narrow(-1, 0, half);
  const at::Tensor second = x.narrow(-1, half, half);
  at::Tensor rotated = at::empty_like(x, at::MemoryFormat::Contiguous);
  at::Tensor rotated_first = rotated.narrow(-1, 0, half);
  at::Tensor rotated_second = rotated.narrow(-1, half, half);
  at::mul_out(rotated_first, first, cos);
  rotated_first.addcmul_(second, sin, -direction);
  at::mul_out(rotated_second, second, cos);
  rotated_second.addcmul_(first, sin, direction);
  return rotated;
}

/// MKL chooses its kernels for cosine and sine when they are first called. Where several threads do that at once, one
/// of them was seen to get values with half the bits, in 6 of 190 processes on two cores.
void choose_kernels_on_one_thread() {
  static const at::Tensor chosen = at::ones({1}, at::kFloat).cos().sin();
}

RotaryTable table_of(const at::Tensor& angles, double scale) {
  choose_kernels_on_one_thread();
  if (scale == 1) return {angles.cos(), angles.sin()};
  return {angles.cos().mul_(scale), angles.sin().mul_(scale)};
}

struct Rotate : torch::autograd::Function<Rotate> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, const at::Tensor& cos,
                            const at::Tensor& sin) {
    context->save_for_backward({cos, sin});
    return rotate(x, cos, sin, 1);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    return {rotate(gradients[0], saved[0], saved[1], -1), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

RotaryTable RotaryTable::of(const at::Tensor& position_ids, const at::Tensor& frequencies, double scale) {
  return table_of(position_ids.to(at::kFloat).view({-1, 1, 1}) * frequencies, scale);
}

RotaryTable RotaryTable::of_axes(const at::Tensor& position_ids, const at::Tensor& axes_of_pairs,
                                 const at::Tensor& frequencies, double scale) {
  const at::Tensor positions = position_ids.to(at::kFloat).t().index_select(1, axes_of_pairs);  // [rows, pairs]
  return table_of(positions.unsqueeze(1) * frequencies, scale);
}

at::Tensor rotary_frequencies(int64_t head_dim, double theta) {
  const at::Tensor exponents = at::arange(0, head_dim, 2, at::kFloat).div_(static_cast<double>(head_dim));
  return at::pow(theta, exponents).reciprocal_();
}

at::Tensor apply_rotary(const at::Tensor& x, const RotaryTable& table) {
  return Rotate::apply(x, table.cos, table.sin);
}

}  // namespace vlmtrain::nn
