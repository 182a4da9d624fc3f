#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mul.h>
#include <torch/csrc/autograd/custom_function.h>

#include <utility>

#include "nn/rms_norm.h"
#include "nn/rotate.h"
#include "vlmtrain/kernels/norm_rotate.h"
#include "vlmtrain/nn/rotary.h"

namespace vlmtrain::nn {

namespace {

/// [query + key_value heads, features]
at::Tensor expand_head_weights(const at::Tensor& query, const at::Tensor& key, int64_t query_heads,
                               int64_t key_value_heads) {
  return at::cat({query.expand({query_heads, -1}), key.expand({key_value_heads, -1})});
}

kernels::Gain to_kernel_gain(int64_t gain) {
  return static_cast<NormGain>(gain) == NormGain::kWeight ? kernels::Gain::kWeight : kernels::Gain::kOnePlusWeight;
}

/// Queries and keys are normed at once, without their weights, which then multiply the rounded result: transformers
/// rounds there, too.
struct QkNormRopeFunction : torch::autograd::Function<QkNormRopeFunction> {
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                                                const at::Tensor& query_weight, const at::Tensor& key_weight,
                                                const at::Tensor& cos, const at::Tensor& sin, int64_t query_heads,
                                                int64_t key_value_heads, int64_t features, double eps, int64_t gain) {
    const int64_t num_normed_heads = query_heads + key_value_heads;
    if (kernels::can_qk_norm_rope(x, features)) {
      // Nothing is copied: x is kept whole, and the values stay in it.
      const at::Tensor rotated = at::empty({x.size(0), num_normed_heads, features}, x.options());
      const at::Tensor query = rotated.narrow(1, 0, query_heads), key = rotated.narrow(1, query_heads, key_value_heads);
      const auto parts = split_heads(x.detach(), query_heads, key_value_heads, features);
      const kernels::HeadNorm norm{query_weight, key_weight, to_kernel_gain(gain), eps};
      const at::Tensor rstd = kernels::qk_norm_rope({query, key, {}}, parts, norm, cos, sin);
      context->save_for_backward({x, rstd, query_weight, key_weight, cos, sin});
      context->saved_data["eps"] = eps;
      context->saved_data["gain"] = gain;
      return {query, key, parts.value};
    }
    const at::Tensor heads = view_heads(x, 0, num_normed_heads, features).contiguous();
    auto [value, rstd] = rms_norm(heads, {}, eps);
    multiply_by_gain(value, expand_head_weights(query_weight, key_weight, query_heads, key_value_heads),
                     static_cast<NormGain>(gain));
    const at::Tensor rotated = at::empty_like(value);
    apply_rope(rotated, value, cos, sin, 1);
    context->save_for_backward({heads, rstd, query_weight, key_weight, cos, sin});
    context->saved_data["eps"] = eps;
    context->saved_data["gain"] = gain;
    return {rotated.narrow(1, 0, query_heads), rotated.narrow(1, query_heads, key_value_heads),
            view_heads(x, num_normed_heads, key_value_heads, features).contiguous()};
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    if (saved[0].dim() == 2) return fused_backward(context, saved, gradients);
    const at::Tensor &heads = saved[0], &query_weight = saved[2], &key_weight = saved[3];
    const int64_t rows = heads.size(0), features = heads.size(2);
    const int64_t query_heads = gradients[0].size(1), key_value_heads = gradients[1].size(1);
    at::Tensor dnormed = at::empty_like(heads);
    apply_rope(dnormed.narrow(1, 0, query_heads), gradients[0], saved[4], saved[5], -1);
    apply_rope(dnormed.narrow(1, query_heads, key_value_heads), gradients[1], saved[4], saved[5], -1);

    at::Tensor dquery_weight, dkey_weight;
    if (context->needs_input_grad(1) || context->needs_input_grad(2)) {
      const at::Tensor normed = rms_norm(heads, {}, context->saved_data["eps"].toDouble()).value;
      const at::Tensor by_head = (normed * dnormed).sum(0, /*keepdim=*/false, saved[1].scalar_type());
      dquery_weight = by_head.narrow(0, 0, query_heads).sum(0).to(query_weight.scalar_type());
      dkey_weight = by_head.narrow(0, query_heads, key_value_heads).sum(0).to(key_weight.scalar_type());
    }
    at::Tensor dx;
    if (context->needs_input_grad(0)) {
      multiply_by_gain(dnormed, expand_head_weights(query_weight, key_weight, query_heads, key_value_heads),
                       static_cast<NormGain>(context->saved_data["gain"].toInt()));
      dx = at::empty({rows, (query_heads + 2 * key_value_heads) * features}, heads.options());
      view_heads(dx, 0, query_heads + key_value_heads, features)
          .copy_(rms_norm_backward(dnormed, heads, saved[1], {}, true, false).x);
      view_heads(dx, query_heads + key_value_heads, key_value_heads, features).copy_(gradients[2]);
    }
    return {dx, dquery_weight, dkey_weight, {}, {}, {}, {}, {}, {}, {}};
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
    const kernels::HeadNorm norm{saved[2], saved[3], to_kernel_gain(context->saved_data["gain"].toInt()),
                                 context->saved_data["eps"].toDouble()};
    const bool needs_weight_gradients = context->needs_input_grad(1) || context->needs_input_grad(2);
    const at::Tensor dx = at::empty_like(x);
    auto weight_gradients = kernels::qk_norm_rope_backward(
        parts(dx),
        {make_rows_contiguous(gradients[0]), make_rows_contiguous(gradients[1]), make_rows_contiguous(gradients[2])},
        parts(x), saved[1], norm, saved[4], saved[5], needs_weight_gradients);
    return {dx, weight_gradients.query_weight, weight_gradients.key_weight, {}, {}, {}, {}, {}, {}, {}};
  }
};

}  // namespace

QkNorm::QkNorm(const ParameterScope& scope, int64_t features, double eps, NormGain gain)
    : query_weight_((scope / "q_norm").parameter("weight", {features}, unit_gain(gain))),
      key_weight_((scope / "k_norm").parameter("weight", {features}, unit_gain(gain))),
      eps_(eps),
      gain_(gain) {}

QueryKeyValue QkNorm::split_and_rotate_heads(const at::Tensor& x, const HeadShape& heads,
                                             const RotaryTable& table) const {
  auto parts = QkNormRopeFunction::apply(x, query_weight_, key_weight_, table.cos, table.sin, heads.num_heads,
                                         heads.num_key_value_heads, heads.head_dim, eps_, static_cast<int64_t>(gain_));
  return {std::move(parts[0]), std::move(parts[1]), std::move(parts[2])};
}

}  // namespace vlmtrain::nn
