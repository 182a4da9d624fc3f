#include "vlmtrain/nn/rotary.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/pow.h>
#include <torch/csrc/autograd/custom_function.h>

#include <utility>

#include "nn/rotate.h"
#include "vlmtrain/kernels/kernels.h"

namespace vlmtrain::nn {

namespace {

/// MKL chooses its kernels for cosine and sine when they are first called. Where several threads do that at once, one
/// of them was seen to get values with half the bits, in 6 of 190 processes on two cores.
void init_trig_kernels() {
  static const at::Tensor warmup = at::ones({1}, at::kFloat).cos().sin();
}

RotaryTable make_table(const at::Tensor& angles, double scale) {
  init_trig_kernels();
  if (scale == 1) return {angles.cos(), angles.sin()};
  return {angles.cos().mul_(scale), angles.sin().mul_(scale)};
}

struct RopeFunction : torch::autograd::Function<RopeFunction> {
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                                                const at::Tensor& cos, const at::Tensor& sin, int64_t query_heads,
                                                int64_t key_value_heads, int64_t features) {
    context->save_for_backward({cos, sin});
    const int64_t num_rotated_heads = query_heads + key_value_heads;
    // In a tensor of their own, so that x can go.
    const at::Tensor rotated = at::empty({x.size(0), num_rotated_heads, features}, x.options());
    const at::Tensor query = rotated.narrow(1, 0, query_heads), key = rotated.narrow(1, query_heads, key_value_heads);
    if (kernels::has(kernels::Kernel::kRope, x)) {
      const at::Tensor value = at::empty({x.size(0), key_value_heads, features}, x.options());
      kernels::rope({query, key, value}, split_heads(x, query_heads, key_value_heads, features), cos, sin, 1);
      return {query, key, value};
    }
    apply_rope(rotated, view_heads(x, 0, num_rotated_heads, features), cos, sin, 1);
    return {query, key, view_heads(x, num_rotated_heads, key_value_heads, features).contiguous()};
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const at::Tensor& query = gradients[0];
    const int64_t query_heads = query.size(1), key_value_heads = gradients[1].size(1), features = query.size(2);
    const at::Tensor result =
        at::empty({query.size(0), (query_heads + 2 * key_value_heads) * features}, query.options());
    if (kernels::has(kernels::Kernel::kRope, query)) {
      kernels::rope(
          split_heads(result, query_heads, key_value_heads, features),
          {make_rows_contiguous(query), make_rows_contiguous(gradients[1]), make_rows_contiguous(gradients[2])},
          saved[0], saved[1], -1);
      return {result, {}, {}, {}, {}, {}};
    }
    apply_rope(view_heads(result, 0, query_heads, features), query, saved[0], saved[1], -1);
    apply_rope(view_heads(result, query_heads, key_value_heads, features), gradients[1], saved[0], saved[1], -1);
    view_heads(result, query_heads + key_value_heads, key_value_heads, features).copy_(gradients[2]);
    return {result, {}, {}, {}, {}, {}};
  }
};

}  // namespace

void apply_rope(const at::Tensor& rotated, const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin,
                double direction) {
  const int64_t half = x.size(-1) / 2;
  const at::Tensor halves = x.unflatten(-1, {2, half});
  const at::Tensor rotated_halves = rotated.unflatten(-1, {2, half});
  at::Tensor all = rotated_halves;
  at::mul_out(all, halves, cos.unsqueeze(2));
  rotated_halves.select(2, 0).addcmul_(halves.select(2, 1), sin, -direction);
  rotated_halves.select(2, 1).addcmul_(halves.select(2, 0), sin, direction);
}

kernels::Heads split_heads(const at::Tensor& x, int64_t query_heads, int64_t key_value_heads, int64_t features) {
  return {view_heads(x, 0, query_heads, features), view_heads(x, query_heads, key_value_heads, features),
          view_heads(x, query_heads + key_value_heads, key_value_heads, features)};
}

at::Tensor make_rows_contiguous(const at::Tensor& heads) {
  const bool dense_rows = heads.stride(2) == 1 && heads.stride(1) == heads.size(2);
  return dense_rows ? heads : heads.contiguous();
}

at::Tensor view_heads(const at::Tensor& x, int64_t first, int64_t count, int64_t features) {
  return x.narrow(1, first * features, count * features).unflatten(1, {count, features});
}

RotaryTable RotaryTable::from_positions(const at::Tensor& position_ids, const at::Tensor& frequencies, double scale) {
  return make_table(position_ids.to(at::kFloat).view({-1, 1, 1}) * frequencies, scale);
}

RotaryTable RotaryTable::from_axes(const at::Tensor& position_ids, const at::Tensor& axes_of_pairs,
                                   const at::Tensor& frequencies, double scale) {
  const at::Tensor positions = position_ids.to(at::kFloat).t().index_select(1, axes_of_pairs);  // [rows, pairs]
  return make_table(positions.unsqueeze(1) * frequencies, scale);
}

at::Tensor compute_inv_freq(int64_t head_dim, double theta) {
  const at::Tensor exponents = at::arange(0, head_dim, 2, at::kFloat).div_(static_cast<double>(head_dim));
  return at::pow(theta, exponents).reciprocal_();
}

QueryKeyValue split_and_rotate_heads(const at::Tensor& x, const HeadShape& heads, const RotaryTable& table) {
  auto parts = RopeFunction::apply(x, table.cos, table.sin, heads.num_heads, heads.num_key_value_heads, heads.head_dim);
  return {std::move(parts[0]), std::move(parts[1]), std::move(parts[2])};
}

}  // namespace vlmtrain::nn
