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
void choose_kernels_on_one_thread() {
  static const at::Tensor chosen = at::ones({1}, at::kFloat).cos().sin();
}

RotaryTable table_of(const at::Tensor& angles, double scale) {
  choose_kernels_on_one_thread();
  if (scale == 1) return {angles.cos(), angles.sin()};
  return {angles.cos().mul_(scale), angles.sin().mul_(scale)};
}

struct RotateHeads : torch::autograd::Function<RotateHeads> {
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                                                const at::Tensor& cos, const at::Tensor& sin, int64_t query_heads,
                                                int64_t key_value_heads, int64_t features) {
    context->save_for_backward({cos, sin});
    const int64_t rotated_heads = query_heads + key_value_heads;
    // In a tensor of their own, so that x can go.
    const at::Tensor rotated = at::empty({x.size(0), rotated_heads, features}, x.options());
    const at::Tensor query = rotated.narrow(1, 0, query_heads), key = rotated.narrow(1, query_heads, key_value_heads);
    if (kernels::has(kernels::Kernel::kRotate, x)) {
      const at::Tensor value = at::empty({x.size(0), key_value_heads, features}, x.options());
      kernels::rotate({query, key, value}, parts_of(x, query_heads, key_value_heads, features), cos, sin, 1);
      return {query, key, value};
    }
    rotate_into(rotated, heads_of(x, 0, rotated_heads, features), cos, sin, 1);
    return {query, key, heads_of(x, rotated_heads, key_value_heads, features).contiguous()};
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const at::Tensor& query = gradients[0];
    const int64_t query_heads = query.size(1), key_value_heads = gradients[1].size(1), features = query.size(2);
    const at::Tensor result =
        at::empty({query.size(0), (query_heads + 2 * key_value_heads) * features}, query.options());
    if (kernels::has(kernels::Kernel::kRotate, query)) {
      kernels::rotate(parts_of(result, query_heads, key_value_heads, features),
                      {rows_of_heads(query), rows_of_heads(gradients[1]), rows_of_heads(gradients[2])}, saved[0],
                      saved[1], -1);
      return {result, {}, {}, {}, {}, {}};
    }
    rotate_into(heads_of(result, 0, query_heads, features), query, saved[0], saved[1], -1);
    rotate_into(heads_of(result, query_heads, key_value_heads, features), gradients[1], saved[0], saved[1], -1);
    heads_of(result, query_heads + key_value_heads, key_value_heads, features).copy_(gradients[2]);
    return {result, {}, {}, {}, {}, {}};
  }
};

}  // namespace

void rotate_into(const at::Tensor& rotated, const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin,
                 double direction) {
  const int64_t half = x.size(-1) / 2;
  const at::Tensor halves = x.unflatten(-1, {2, half});
  const at::Tensor rotated_halves = rotated.unflatten(-1, {2, half});
  at::Tensor all = rotated_halves;
  at::mul_out(all, halves, cos.unsqueeze(2));
  rotated_halves.select(2, 0).addcmul_(halves.select(2, 1), sin, -direction);
  rotated_halves.select(2, 1).addcmul_(halves.select(2, 0), sin, direction);
}

kernels::Heads parts_of(const at::Tensor& x, int64_t query_heads, int64_t key_value_heads, int64_t features) {
  return {heads_of(x, 0, query_heads, features), heads_of(x, query_heads, key_value_heads, features),
          heads_of(x, query_heads + key_value_heads, key_value_heads, features)};
}

at::Tensor rows_of_heads(const at::Tensor& heads) {
  const bool dense_rows = heads.stride(2) == 1 && heads.stride(1) == heads.size(2);
  return dense_rows ? heads : heads.contiguous();
}

at::Tensor heads_of(const at::Tensor& x, int64_t first, int64_t count, int64_t features) {
  return x.narrow(1, first * features, count * features).unflatten(1, {count, features});
}

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

QueryKeyValue rotated_heads(const at::Tensor& x, const HeadShape& heads, const RotaryTable& table) {
  auto parts = RotateHeads::apply(x, table.cos, table.sin, heads.query, heads.key_value, heads.features);
  return {std::move(parts[0]), std::move(parts[1]), std::move(parts[2])};
}

}  // namespace vlmtrain::nn
