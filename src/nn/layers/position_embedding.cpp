#include "vlmtrain/nn/layers/position_embedding.h"

#include <ATen/OpMathType.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/embedding_dense_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/pow.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cstdint>
#include <optional>
#include <utility>

#include "vlmtrain/base/error.h"
#include "vlmtrain/kernels/kernels.h"
#include "vlmtrain/kernels/rope.h"
#include "vlmtrain/kernels/rows.h"
#include "vlmtrain/nn/layers/norm.h"

namespace vlmtrain::nn {

namespace {

/// Rotates x by the angles and writes the result to `rotated`, both [rows, heads, head_dim]. Copies
/// the features after those of the table's pairs. `direction`: 1, or −1 for the inverse rotation,
/// which is also the gradient.
void apply_rope(const at::Tensor& rotated, const at::Tensor& x, const RotaryTable& table, double direction) {
  const int64_t rotary_dim = 2 * table.cos.size(-1), half_dim = table.cos.size(-1) / table.num_parts;
  if (rotary_dim < x.size(-1)) {
    const auto other_features = [&](const at::Tensor& heads) {
      return heads.narrow(-1, rotary_dim, heads.size(-1) - rotary_dim);
    };
    other_features(rotated).copy_(other_features(x));
  }
  // [rows, heads, parts, 2, half_dim]
  const auto view_halves = [&](const at::Tensor& heads) {
    return heads.narrow(-1, 0, rotary_dim).unflatten(-1, {table.num_parts, 2, half_dim});
  };
  const at::Tensor cos = table.cos.unflatten(-1, {table.num_parts, half_dim}).unsqueeze(3);
  const at::Tensor sin = table.sin.unflatten(-1, {table.num_parts, half_dim});
  const at::Tensor halves = view_halves(x), rotated_halves = view_halves(rotated);
  at::Tensor all = rotated_halves;
  at::mul_out(all, halves, cos);
  rotated_halves.select(3, 0).addcmul_(halves.select(3, 1), sin, -direction);
  rotated_halves.select(3, 1).addcmul_(halves.select(3, 0), sin, direction);
}

/// Returns heads [first, first + count) of x [rows, heads · features] as a view [rows, count,
/// features].
at::Tensor view_heads(const at::Tensor& x, int64_t first, int64_t count, int64_t features) {
  return x.narrow(1, first * features, count * features).unflatten(1, {count, features});
}

/// Returns views of query, key and value in x [rows, query | key | value].
kernels::QkvHeads split_heads(const at::Tensor& x, int64_t query_heads, int64_t key_value_heads, int64_t features) {
  return {view_heads(x, 0, query_heads, features), view_heads(x, query_heads, key_value_heads, features),
          view_heads(x, query_heads + key_value_heads, key_value_heads, features)};
}

/// Returns `heads` if the heads of a row are adjacent, as in the gradients of attention; else a
/// contiguous copy.
at::Tensor make_rows_contiguous(const at::Tensor& heads) {
  const bool has_dense_rows = heads.stride(2) == 1 && heads.stride(1) == heads.size(2);
  return has_dense_rows ? heads : heads.contiguous();
}

/// Makes MKL select its kernels for cosine and sine on this thread. If several threads trigger the
/// selection at once, one may get values with half the bits (seen in 6 of 190 processes on two
/// cores).
void init_trig_kernels() {
  static const at::Tensor warmup = at::ones({1}, at::kFloat).cos().sin();
}

RotaryTable make_rotary_table(const at::Tensor& angles, double scale) {
  init_trig_kernels();
  if (scale == 1) return {angles.cos(), angles.sin()};
  return {angles.cos().mul_(scale), angles.sin().mul_(scale)};
}

/// Returns whether the custom kernels support a rotary table: heads rotate as a whole.
bool rotates_whole_heads(const RotaryTable& table, int64_t features) {
  return table.num_parts == 1 && 2 * table.cos.size(-1) == features;
}

/// Splits x [rows, query | key | value] into heads and rotates queries and keys.
struct RopeFunction : torch::autograd::Function<RopeFunction> {
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                                                const RotaryTable& table, int64_t query_heads, int64_t key_value_heads,
                                                int64_t features) {
    context->save_for_backward({table.cos, table.sin});
    context->saved_data["num_parts"] = table.num_parts;
    context->saved_data["border_columns"] = kernels::get_border_columns(x);
    const int64_t num_rotated_heads = query_heads + key_value_heads;
    // A separate tensor instead of views of x, so x can be freed.
    const at::Tensor rotated = at::empty({x.size(0), num_rotated_heads, features}, x.options());
    const at::Tensor query = rotated.narrow(1, 0, query_heads), key = rotated.narrow(1, query_heads, key_value_heads);
    if (rotates_whole_heads(table, features) && kernels::is_available(kernels::Kernel::kRope, x)) {
      const at::Tensor value = at::empty({x.size(0), key_value_heads, features}, x.options());
      kernels::rope({query, key, value}, split_heads(x, query_heads, key_value_heads, features), table.cos, table.sin,
                    1);
      return {query, key, value};
    }
    apply_rope(rotated, view_heads(x, 0, num_rotated_heads, features), table, 1);
    return {query, key, view_heads(x, num_rotated_heads, key_value_heads, features).contiguous()};
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const RotaryTable table{saved[0], saved[1], context->saved_data["num_parts"].toInt()};
    const at::Tensor& query = gradients[0];
    const int64_t query_heads = query.size(1), key_value_heads = gradients[1].size(1), features = query.size(2);
    const at::Tensor result =
        kernels::allocate_bordered_rows({query.size(0), (query_heads + 2 * key_value_heads) * features},
                                        context->saved_data["border_columns"].toInt(), query.options());
    if (rotates_whole_heads(table, features) && kernels::is_available(kernels::Kernel::kRope, query)) {
      kernels::rope(
          split_heads(result, query_heads, key_value_heads, features),
          {make_rows_contiguous(query), make_rows_contiguous(gradients[1]), make_rows_contiguous(gradients[2])},
          table.cos, table.sin, -1);
      return {result, {}, {}, {}, {}};
    }
    apply_rope(view_heads(result, 0, query_heads, features), query, table, -1);
    apply_rope(view_heads(result, query_heads, key_value_heads, features), gradients[1], table, -1);
    view_heads(result, query_heads + key_value_heads, key_value_heads, features).copy_(gradients[2]);
    return {result, {}, {}, {}, {}};
  }
};

/// Returns the weights of all normalized heads, [query + key_value heads, features]. `key` is
/// undefined without key heads.
at::Tensor expand_head_weights(const at::Tensor& query, const at::Tensor& key, int64_t query_heads,
                               int64_t key_value_heads) {
  if (key_value_heads == 0) return query.expand({query_heads, -1});
  return at::cat({query.expand({query_heads, -1}), key.expand({key_value_heads, -1})});
}

kernels::NormGain to_kernel_gain(int64_t gain) {
  return static_cast<NormGain>(gain) == NormGain::kWeight ? kernels::NormGain::kWeight
                                                          : kernels::NormGain::kOnePlusWeight;
}

/// Normalizes queries and keys without their weights, which then multiply the rounded result, as
/// transformers does. Without key-value heads, the keys have no weight.
struct QkNormRopeFunction : torch::autograd::Function<QkNormRopeFunction> {
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                                                const at::Tensor& query_weight,
                                                const std::optional<at::Tensor>& optional_key_weight,
                                                const RotaryTable& table, const HeadShape& head_shape, double eps,
                                                int64_t gain) {
    const at::Tensor key_weight = optional_key_weight.value_or(at::Tensor());
    const int64_t query_heads = head_shape.num_heads, key_value_heads = head_shape.num_key_value_heads,
                  features = head_shape.head_dim, num_normed_heads = query_heads + key_value_heads;
    context->saved_data["eps"] = eps;
    context->saved_data["gain"] = gain;
    context->saved_data["num_parts"] = table.num_parts;
    context->saved_data["has_value_projection"] = head_shape.has_value_projection;
    if (head_shape.has_value_projection && rotates_whole_heads(table, features) &&
        kernels::can_run_qk_norm_rope(x, features)) {
      // All of x is saved, so the values can remain in it without a copy.
      const at::Tensor rotated = at::empty({x.size(0), num_normed_heads, features}, x.options());
      const at::Tensor query = rotated.narrow(1, 0, query_heads), key = rotated.narrow(1, query_heads, key_value_heads);
      const auto parts = split_heads(x.detach(), query_heads, key_value_heads, features);
      const kernels::QkNormParams norm{query_weight, key_weight, to_kernel_gain(gain), eps};
      const at::Tensor rstd = kernels::qk_norm_rope({query, key, {}}, parts, norm, table.cos, table.sin);
      context->save_for_backward({x, rstd, query_weight, key_weight, table.cos, table.sin});
      return {query, key, parts.value};
    }
    const at::Tensor heads = view_heads(x, 0, num_normed_heads, features).contiguous();
    auto [normed, rstd] = rms_norm(heads, {}, eps);
    multiply_by_gain(normed, expand_head_weights(query_weight, key_weight, query_heads, key_value_heads),
                     static_cast<NormGain>(gain));
    const at::Tensor rotated = at::empty_like(normed);
    apply_rope(rotated, normed, table, 1);
    context->save_for_backward({heads, rstd, query_weight, key_weight, table.cos, table.sin});
    const at::Tensor value = head_shape.has_value_projection
                                 ? view_heads(x, num_normed_heads, key_value_heads, features).contiguous()
                                 : heads.narrow(1, query_heads, key_value_heads);
    return {rotated.narrow(1, 0, query_heads), rotated.narrow(1, query_heads, key_value_heads), value};
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    // x or heads, rstd, query_weight, key_weight, cos, sin.
    const auto saved = context->get_saved_variables();
    // The custom kernel saved x [rows, features of all heads], ATen's path heads [rows, heads,
    // features].
    if (saved[0].dim() == 2) return fused_backward(context, saved, gradients);
    const RotaryTable table{saved[4], saved[5], context->saved_data["num_parts"].toInt()};
    const at::Tensor &heads = saved[0], &query_weight = saved[2], &key_weight = saved[3];
    const int64_t rows = heads.size(0), features = heads.size(2);
    const int64_t query_heads = gradients[0].size(1), key_value_heads = gradients[1].size(1);
    at::Tensor dnormed = at::empty_like(heads);
    apply_rope(dnormed.narrow(1, 0, query_heads), gradients[0], table, -1);
    apply_rope(dnormed.narrow(1, query_heads, key_value_heads), gradients[1], table, -1);

    at::Tensor dquery_weight, dkey_weight;
    if (needs_weight_gradients(context, key_weight)) {
      const at::Tensor normed = rms_norm(heads, {}, context->saved_data["eps"].toDouble()).value;
      const at::Tensor dweight_by_head = (normed * dnormed).sum(0, /*keepdim=*/false, saved[1].scalar_type());
      dquery_weight = dweight_by_head.narrow(0, 0, query_heads).sum(0).to(query_weight.scalar_type());
      if (key_weight.defined())
        dkey_weight = dweight_by_head.narrow(0, query_heads, key_value_heads).sum(0).to(key_weight.scalar_type());
    }
    at::Tensor dx;
    if (context->needs_input_grad(0)) {
      multiply_by_gain(dnormed, expand_head_weights(query_weight, key_weight, query_heads, key_value_heads),
                       static_cast<NormGain>(context->saved_data["gain"].toInt()));
      const bool has_value_projection = context->saved_data["has_value_projection"].toBool();
      const int64_t num_heads = query_heads + (has_value_projection ? 2 : 1) * key_value_heads;
      dx = at::empty({rows, num_heads * features}, heads.options());
      view_heads(dx, 0, query_heads + key_value_heads, features)
          .copy_(rms_norm_backward(dnormed, heads, saved[1], {}, true, false).dx);
      if (has_value_projection) {
        view_heads(dx, query_heads + key_value_heads, key_value_heads, features).copy_(gradients[2]);
      } else {
        view_heads(dx, query_heads, key_value_heads, features).add_(gradients[2]);
      }
    }
    return {dx, dquery_weight, dkey_weight, {}, {}, {}, {}};
  }

  /// `key_weight`: undefined if it is not an input.
  static bool needs_weight_gradients(const torch::autograd::AutogradContext* context, const at::Tensor& key_weight) {
    return context->needs_input_grad(1) || (key_weight.defined() && context->needs_input_grad(2));
  }

  static torch::autograd::variable_list fused_backward(torch::autograd::AutogradContext* context,
                                                       const torch::autograd::variable_list& saved,
                                                       const torch::autograd::variable_list& gradients) {
    const at::Tensor& x = saved[0];
    const int64_t query_heads = gradients[0].size(1), key_value_heads = gradients[1].size(1);
    const int64_t features = gradients[0].size(2);
    const auto parts = [&](const at::Tensor& whole) {
      return split_heads(whole, query_heads, key_value_heads, features);
    };
    const kernels::QkNormParams norm{saved[2], saved[3], to_kernel_gain(context->saved_data["gain"].toInt()),
                                     context->saved_data["eps"].toDouble()};
    const bool compute_weight_gradients = needs_weight_gradients(context, norm.key_weight);
    const at::Tensor dx = kernels::allocate_rows_like(x);
    auto weight_gradients = kernels::qk_norm_rope_backward(
        parts(dx),
        {make_rows_contiguous(gradients[0]), make_rows_contiguous(gradients[1]), make_rows_contiguous(gradients[2])},
        parts(x), saved[1], norm, saved[4], saved[5], compute_weight_gradients);
    return {dx,
            weight_gradients.query_weight,
            norm.key_weight.defined() ? weight_gradients.key_weight : at::Tensor(),
            {},
            {},
            {},
            {}};
  }
};

/// Implements sum_weighted_rows().
struct WeightedRowSumFunction : torch::autograd::Function<WeightedRowSumFunction> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& table,
                            const at::Tensor& indices, const at::Tensor& weights) {
    context->save_for_backward({indices, weights});
    context->saved_data["rows"] = table.size(0);
    const auto accumulate_type = at::toOpMathType(table.scalar_type());
    at::Tensor sum;
    for (int64_t k = 0; k < indices.size(0); ++k) {
      const at::Tensor rows = table.index_select(0, indices[k]), weight = weights[k].unsqueeze(1).to(accumulate_type);
      sum = k == 0 ? rows * weight : sum.addcmul_(rows.to(accumulate_type), weight);
    }
    return sum.to(table.scalar_type());
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const at::Tensor &indices = saved[0], &weights = saved[1], &gradient = gradients[0];
    const auto accumulate_type = at::toOpMathType(gradient.scalar_type());
    at::Tensor sum;
    for (int64_t k = 0; k < indices.size(0); ++k) {
      const at::Tensor table_gradient = at::embedding_dense_backward(
          gradient * weights[k].unsqueeze(1).to(accumulate_type), indices[k], context->saved_data["rows"].toInt(),
          /*padding_idx=*/-1, /*scale_grad_by_freq=*/false);
      sum = k == 0 ? table_gradient : sum.add_(table_gradient);
    }
    return {sum.to(gradient.scalar_type()), {}, {}};
  }
};

}  // namespace

RotaryTable RotaryTable::from_positions(const at::Tensor& position_ids, const at::Tensor& frequencies, double scale) {
  return make_rotary_table(position_ids.to(at::kFloat).view({-1, 1, 1}) * frequencies, scale);
}

RotaryTable RotaryTable::from_axes(const at::Tensor& position_ids, const at::Tensor& pair_axes,
                                   const at::Tensor& frequencies, double scale) {
  const at::Tensor positions = position_ids.to(at::kFloat).t().index_select(1, pair_axes);  // [rows, pairs]
  return make_rotary_table(positions.unsqueeze(1) * frequencies, scale);
}

at::Tensor compute_inv_freq(int64_t head_dim, double theta) {
  const at::Tensor exponents = at::arange(0, head_dim, 2, at::kFloat).div_(static_cast<double>(head_dim));
  return at::pow(theta, exponents).reciprocal_();
}

QueryKeyValue split_and_rotate_heads(const at::Tensor& x, const HeadShape& heads, const RotaryTable& table) {
  VLMTRAIN_CHECK(heads.has_value_projection, "values without a projection require a QK-norm");
  auto parts = RopeFunction::apply(x, table, heads.num_heads, heads.num_key_value_heads, heads.head_dim);
  return {std::move(parts[0]), std::move(parts[1]), std::move(parts[2])};
}

namespace {

at::Tensor add_query_weight(const ParameterScope& scope, int64_t features, NormGain gain, double initial_query_gain) {
  return (scope / "q_norm")
      .add_parameter("weight", {features}, {.mean = make_unit_gain_values(gain).mean + initial_query_gain - 1});
}

}  // namespace

QkNorm::QkNorm(const ParameterScope& scope, int64_t features, double eps, NormGain gain, double initial_query_gain)
    : query_weight_(add_query_weight(scope, features, gain, initial_query_gain)),
      key_weight_((scope / "k_norm").add_parameter("weight", {features}, make_unit_gain_values(gain))),
      eps_(eps),
      gain_(gain) {}

QueryKeyValue QkNorm::split_and_rotate_heads(const at::Tensor& x, const HeadShape& heads,
                                             const RotaryTable& table) const {
  auto parts = QkNormRopeFunction::apply(x, query_weight_, std::optional(key_weight_), table, heads, eps_,
                                         static_cast<int64_t>(gain_));
  return {std::move(parts[0]), std::move(parts[1]), std::move(parts[2])};
}

QueryNorm::QueryNorm(const ParameterScope& scope, int64_t features, double eps, NormGain gain,
                     double initial_query_gain)
    : weight_(add_query_weight(scope, features, gain, initial_query_gain)), eps_(eps), gain_(gain) {}

at::Tensor QueryNorm::split_and_rotate_heads(const at::Tensor& x, int64_t num_heads, const RotaryTable& table) const {
  const HeadShape heads{.num_heads = num_heads, .num_key_value_heads = 0, .head_dim = weight_.size(0)};
  return QkNormRopeFunction::apply(x, weight_, /*key_weight=*/std::optional<at::Tensor>(), table, heads, eps_,
                                   static_cast<int64_t>(gain_))
      .front();
}

at::Tensor sum_weighted_rows(const at::Tensor& table, const at::Tensor& indices, const at::Tensor& weights) {
  return WeightedRowSumFunction::apply(table, indices, weights);
}

}  // namespace vlmtrain::nn
