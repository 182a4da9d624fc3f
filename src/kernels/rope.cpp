#include "vlmtrain/kernels/rope.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "kernels/launch.h"
#include "vlmtrain/base/error.h"

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
          .weight = weight.const_data_ptr(),
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
  // The stride of a single row is arbitrary.
  VLMTRAIN_CHECK(query.size(0) <= 1 || stride == get_row_stride(key), "queries and keys must have the same row stride");
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

}  // namespace vlmtrain::kernels
