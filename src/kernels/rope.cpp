#include "vlmtrain/kernels/rope.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/ones_like.h>

#include <algorithm>

#include "kernels/launch.h"
#include "kernels/self_test.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/kernels/norm.h"

namespace vlmtrain::kernels {

namespace {

RopeArgs::Heads make_rope_heads(const at::Tensor& output, const at::Tensor& input) {
  VLMTRAIN_CHECK(input.stride(2) == 1 && output.stride(2) == 1 && input.stride(1) == input.size(2) &&
                     output.stride(1) == output.size(2),
                 "the heads of a row must be contiguous");
  return {.from = input.const_data_ptr(),
          .to = output.mutable_data_ptr(),
          .from_stride = input.stride(0),
          .to_stride = output.stride(0),
          .num_heads = input.size(1)};
}

}  // namespace

void rope(const QkvHeads& output, const QkvHeads& input, const at::Tensor& cos, const at::Tensor& sin,
          double direction) {
  if (input.query.size(0) == 0) return;
  KernelLaunch("vlmtrain::rope", {input.query, input.key, input.value, cos, sin},
               {output.query, output.key, output.value})(launchers().rope,
                                                         RopeArgs{.element = get_element_type(input.query),
                                                                  .rows = input.query.size(0),
                                                                  .features = input.query.size(2),
                                                                  .direction = static_cast<float>(direction),
                                                                  .cos = cos.const_data_ptr<float>(),
                                                                  .sin = sin.const_data_ptr<float>(),
                                                                  .query = make_rope_heads(output.query, input.query),
                                                                  .key = make_rope_heads(output.key, input.key),
                                                                  .value = make_rope_heads(output.value, input.value)});
}

namespace {

/// Returns the elements between rows. REQUIRES: the heads of a row are contiguous.
int64_t get_row_stride(const at::Tensor& heads) {
  VLMTRAIN_CHECK(heads.stride(2) == 1 && (heads.size(1) == 1 || heads.stride(1) == heads.size(2)),
                 "the heads of a row must be contiguous");
  return heads.stride(0);
}

QkNormRopeForwardArgs::Heads make_forward_heads(const at::Tensor& output, const at::Tensor& x,
                                                const at::Tensor& weight) {
  return {.x = x.const_data_ptr(),
          .weight = weight.defined() ? weight.const_data_ptr() : nullptr,
          .rotated = output.mutable_data_ptr(),
          .rotated_stride = get_row_stride(output),
          .num_heads = x.size(1)};
}

QkNormRopeBackwardArgs::Heads make_backward_heads(const at::Tensor& dx, const at::Tensor& gradient, const at::Tensor& x,
                                                  const at::Tensor& weight) {
  return {.gradient = gradient.const_data_ptr(),
          .gradient_stride = get_row_stride(gradient),
          .x = x.const_data_ptr(),
          .weight = weight.defined() ? weight.const_data_ptr() : nullptr,
          .dx = dx.mutable_data_ptr(),
          .num_heads = gradient.size(1)};
}

/// Returns the number of warps for the heads of all rows: enough to fill a large GPU, but no more
/// than heads. Fewer warps leave fewer partial sums of weight gradients.
int64_t choose_num_warps(int64_t heads) {
  // 384 blocks, about the three per multiprocessor (rope.cu) of an H100, which has 132 of them.
  constexpr int64_t kMaxTotalWarps = 3072;
  const int64_t blocks = std::clamp((heads + kQkNormRopeWarpsPerBlock - 1) / kQkNormRopeWarpsPerBlock, int64_t{1},
                                    kMaxTotalWarps / kQkNormRopeWarpsPerBlock);
  return blocks * kQkNormRopeWarpsPerBlock;
}

/// Returns the row stride of both; throws InternalError if they differ.
int64_t get_common_row_stride(const at::Tensor& query, const at::Tensor& key) {
  const int64_t stride = get_row_stride(query);
  // The stride of a single row, or of no heads, is arbitrary.
  VLMTRAIN_CHECK(query.size(0) <= 1 || key.size(1) == 0 || stride == get_row_stride(key),
                 "queries and keys must have the same row stride");
  return stride;
}

}  // namespace

bool can_run_qk_norm_rope(const at::Tensor& x, int64_t features) {
  return is_available(Kernel::kQkNormRope, x) && features <= kMaxQkNormFeatures;
}

at::Tensor qk_norm_rope(const QkvHeads& output, const QkvHeads& x, const QkNormParams& norm, const at::Tensor& cos,
                        const at::Tensor& sin) {
  const int64_t rows = x.query.size(0);
  at::Tensor rstd = at::empty({rows, x.query.size(1) + x.key.size(1)}, x.query.options().dtype(at::kFloat));
  if (rows == 0) return rstd;
  KernelLaunch("vlmtrain::qk_norm_rope", {x.query, x.key, cos, sin}, {output.query, output.key, rstd})(
      launchers().qk_norm_rope_forward,
      QkNormRopeForwardArgs{.element = get_element_type(x.query),
                            .gain = norm.gain,
                            .rows = rows,
                            .features = x.query.size(2),
                            .x_stride = get_common_row_stride(x.query, x.key),
                            .eps = static_cast<float>(norm.eps),
                            .cos = cos.const_data_ptr<float>(),
                            .sin = sin.const_data_ptr<float>(),
                            .rstd = rstd.mutable_data_ptr<float>(),
                            .query = make_forward_heads(output.query, x.query, norm.query_weight),
                            .key = make_forward_heads(output.key, x.key, norm.key_weight)});
  return rstd;
}

QkNormGradients qk_norm_rope_backward(const QkvHeads& dx, const QkvHeads& gradients, const QkvHeads& x,
                                      const at::Tensor& rstd, const QkNormParams& norm, const at::Tensor& cos,
                                      const at::Tensor& sin, bool compute_weight_gradients) {
  const int64_t features = x.query.size(2);
  at::Tensor partial_weight_gradients;  // [warps, 2 (query, key), features]
  const int64_t warps = choose_num_warps(x.query.size(0) * (x.query.size(1) + x.key.size(1) + gradients.value.size(1)));
  if (compute_weight_gradients) partial_weight_gradients = at::empty({warps, 2, features}, rstd.options());
  if (x.query.size(0) == 0) {
    if (compute_weight_gradients) partial_weight_gradients.zero_();
  } else {
    KernelLaunch("vlmtrain::qk_norm_rope_backward",
                 {gradients.query, gradients.key, gradients.value, x.query, x.key, rstd, cos, sin},
                 {dx.query, dx.key, dx.value})(
        launchers().qk_norm_rope_backward,
        QkNormRopeBackwardArgs{.element = get_element_type(x.query),
                               .gain = norm.gain,
                               .rows = x.query.size(0),
                               .features = features,
                               .x_stride = get_common_row_stride(x.query, x.key),
                               .dx_stride = get_common_row_stride(dx.query, dx.key),
                               .cos = cos.const_data_ptr<float>(),
                               .sin = sin.const_data_ptr<float>(),
                               .rstd = rstd.const_data_ptr<float>(),
                               .query = make_backward_heads(dx.query, gradients.query, x.query, norm.query_weight),
                               .key = make_backward_heads(dx.key, gradients.key, x.key, norm.key_weight),
                               .value = make_backward_heads(dx.value, gradients.value, gradients.value, {}),
                               .warps = warps,
                               .partial_weight_gradients = compute_weight_gradients
                                                               ? partial_weight_gradients.mutable_data_ptr<float>()
                                                               : nullptr});
  }
  if (!compute_weight_gradients) return {};
  const at::Tensor weight_gradients = partial_weight_gradients.sum(0).to(norm.query_weight.scalar_type());
  return {weight_gradients[0], weight_gradients[1]};
}

namespace reference {

namespace {

at::Tensor apply_rope(const at::Tensor& heads, const at::Tensor& cos, const at::Tensor& sin, double direction) {
  const auto halves = heads.chunk(2, -1);
  const at::Tensor signed_sin = sin * direction;
  return at::cat({halves[0] * cos - halves[1] * signed_sin, halves[1] * cos + halves[0] * signed_sin}, -1);
}

}  // namespace

at::Tensor rope(const at::Tensor& heads, const at::Tensor& cos, const at::Tensor& sin, double direction) {
  return apply_rope(heads.to(at::kDouble), cos, sin, direction).to(heads.scalar_type());
}

at::Tensor qk_norm_rope(const at::Tensor& heads, const at::Tensor& weight, NormGain gain, double eps,
                        const at::Tensor& cos, const at::Tensor& sin) {
  const NormParams params{.weight = weight, .gain = gain, .eps = eps};
  return apply_rope(reference::norm(heads.to(at::kDouble), params, {}), cos, sin, 1).to(heads.scalar_type());
}

QkNormRopeGradients qk_norm_rope_backward(const at::Tensor& gradient, const at::Tensor& heads, const at::Tensor& weight,
                                          NormGain gain, double eps, const at::Tensor& cos, const at::Tensor& sin) {
  const at::Tensor x = heads.to(at::kDouble), unrotated_dy = apply_rope(gradient.to(at::kDouble), cos, sin, -1);
  const at::Tensor xhat = reference::norm(x, {.weight = at::ones_like(weight), .eps = eps}, {});
  const at::Tensor dx = reference::norm_backward(unrotated_dy, x, {.weight = weight, .gain = gain, .eps = eps}, {});
  return {dx.to(heads.scalar_type()), (unrotated_dy * xhat).sum(at::IntArrayRef{0, 1}).to(weight.scalar_type())};
}

}  // namespace reference

std::vector<ComparedTensors> test_rope(RandomInputs& inputs, const KernelTestSizes& sizes) {
  std::vector<ComparedTensors> compared_tensors;
  for (const int64_t features : {int64_t{32}, int64_t{6}}) {
    const at::Tensor x = inputs.make_tensor({sizes.rows, 6, features});
    const at::Tensor cos = inputs.make_fp32_tensor({sizes.rows, 1, features / 2}),
                     sin = inputs.make_fp32_tensor({sizes.rows, 1, features / 2});
    const at::Tensor actual = at::empty_like(x);
    const auto split_heads = [](const at::Tensor& heads) {
      return QkvHeads{heads.narrow(1, 0, 3), heads.narrow(1, 3, 2), heads.narrow(1, 5, 1)};
    };
    rope(split_heads(actual), split_heads(x), cos, sin, -1);
    compared_tensors.push_back({actual.narrow(1, 0, 5), reference::rope(x.narrow(1, 0, 5), cos, sin, -1)});
    compared_tensors.push_back({actual.narrow(1, 5, 1), x.narrow(1, 5, 1)});
  }
  return compared_tensors;
}

std::vector<ComparedTensors> test_qk_norm_rope(RandomInputs& inputs, const KernelTestSizes& sizes) {
  constexpr double kEps = 1e-6;
  std::vector<ComparedTensors> compared_tensors;
  for (const auto gain : {NormGain::kWeight, NormGain::kOnePlusWeight}) {
    for (const int64_t features : {int64_t{128}, int64_t{6}}) {
      const at::Tensor x = inputs.make_tensor({sizes.rows, 6, features}),
                       gradient = inputs.make_tensor({sizes.rows, 6, features});
      const at::Tensor cos = inputs.make_fp32_tensor({sizes.rows, 1, features / 2}),
                       sin = inputs.make_fp32_tensor({sizes.rows, 1, features / 2});
      const QkNormParams norm{inputs.make_tensor({features}), inputs.make_tensor({features}), gain, kEps};
      const at::Tensor actual = at::empty_like(x), dx = at::empty_like(x);
      const auto split_heads = [](const at::Tensor& heads) {
        return QkvHeads{heads.narrow(1, 0, 3), heads.narrow(1, 3, 2), heads.narrow(1, 5, 1)};
      };
      const at::Tensor rstd = qk_norm_rope(split_heads(actual), split_heads(x), norm, cos, sin);
      const auto weight_gradients =
          qk_norm_rope_backward(split_heads(dx), split_heads(gradient), split_heads(x), rstd, norm, cos, sin, true);
      const auto compare = [&](int64_t first, int64_t count, const at::Tensor& weight,
                               const at::Tensor& weight_gradient) {
        const at::Tensor heads = x.narrow(1, first, count);
        compared_tensors.push_back(
            {actual.narrow(1, first, count), reference::qk_norm_rope(heads, weight, gain, kEps, cos, sin)});
        const auto expected =
            reference::qk_norm_rope_backward(gradient.narrow(1, first, count), heads, weight, gain, kEps, cos, sin);
        compared_tensors.push_back({dx.narrow(1, first, count), expected.heads});
        compared_tensors.push_back({weight_gradient, expected.weight});
      };
      compare(0, 3, norm.query_weight, weight_gradients.query_weight);
      compare(3, 2, norm.key_weight, weight_gradients.key_weight);
      compared_tensors.push_back({dx.narrow(1, 5, 1), gradient.narrow(1, 5, 1)});
    }
  }
  return compared_tensors;
}

}  // namespace vlmtrain::kernels
