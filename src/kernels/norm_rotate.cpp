#include "vlmtrain/kernels/norm_rotate.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "kernels/launch.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::kernels {

namespace {

/// Of rows of heads that lie one after the other: elements from a row to the next.
int64_t row_stride(const at::Tensor& heads) {
  VLMTRAIN_CHECK(heads.stride(2) == 1 && (heads.size(1) == 1 || heads.stride(1) == heads.size(2)),
                 "heads of a row lie one after the other");
  return heads.stride(0);
}

NormRotateForward::Heads forward_heads(const at::Tensor& to, const at::Tensor& x, const at::Tensor& weight) {
  return {.x = x.const_data_ptr(),
          .weight = weight.const_data_ptr(),
          .rotated = to.mutable_data_ptr(),
          .rotated_stride = row_stride(to),
          .heads = x.size(1)};
}

NormRotateBackward::Heads backward_heads(const at::Tensor& of_x, const at::Tensor& gradient, const at::Tensor& x,
                                         const at::Tensor& weight) {
  return {.gradient = gradient.const_data_ptr(),
          .gradient_stride = row_stride(gradient),
          .x = x.const_data_ptr(),
          .weight = weight.defined() ? weight.const_data_ptr() : nullptr,
          .of_x = of_x.mutable_data_ptr(),
          .heads = gradient.size(1)};
}

/// So many that a card is full of them, each with several heads; fewer where there are fewer heads.
int64_t warps_for(int64_t heads) {
  constexpr int64_t kMost = 3072;
  const int64_t blocks =
      std::clamp((heads + kNormRotateWarps - 1) / kNormRotateWarps, int64_t{1}, kMost / kNormRotateWarps);
  return blocks * kNormRotateWarps;
}

int64_t common_stride(const at::Tensor& query, const at::Tensor& key) {
  const int64_t stride = row_stride(query);
  // Of a single row the stride may be anything.
  VLMTRAIN_CHECK(query.size(0) <= 1 || stride == row_stride(key),
                 "rows of queries and keys that lie differently far apart");
  return stride;
}

}  // namespace

bool can_norm_and_rotate(const at::Tensor& x, int64_t features) {
  return has(Kernel::kNormRotate, x) && features <= kMostNormedFeatures;
}

at::Tensor norm_rotate(const Heads& to, const Heads& x, const HeadNorm& norm, const at::Tensor& cos,
                       const at::Tensor& sin) {
  const int64_t rows = x.query.size(0);
  at::Tensor reciprocal = at::empty({rows, x.query.size(1) + x.key.size(1)}, x.query.options().dtype(at::kFloat));
  if (rows == 0) return reciprocal;
  Launch("vlmtrain::norm_rotate", {x.query, x.key, cos, sin}, {to.query, to.key, reciprocal})(
      launchers().norm_rotate_forward, NormRotateForward{.element = element_of(x.query),
                                                         .gain = norm.gain,
                                                         .rows = rows,
                                                         .features = x.query.size(2),
                                                         .x_stride = common_stride(x.query, x.key),
                                                         .eps = static_cast<float>(norm.eps),
                                                         .cos = cos.const_data_ptr<float>(),
                                                         .sin = sin.const_data_ptr<float>(),
                                                         .reciprocal = reciprocal.mutable_data_ptr<float>(),
                                                         .query = forward_heads(to.query, x.query, norm.query_weight),
                                                         .key = forward_heads(to.key, x.key, norm.key_weight)});
  return reciprocal;
}

HeadNormGradients norm_rotate_backward(const Heads& of_x, const Heads& gradients, const Heads& x,
                                       const at::Tensor& reciprocal, const HeadNorm& norm, const at::Tensor& cos,
                                       const at::Tensor& sin, bool weights_wanted) {
  const int64_t features = x.query.size(2);
  at::Tensor sums;
  const int64_t warps = warps_for(x.query.size(0) * (x.query.size(1) + x.key.size(1) + gradients.value.size(1)));
  if (weights_wanted) sums = at::empty({warps, 2, features}, reciprocal.options());
  if (x.query.size(0) == 0) {
    if (weights_wanted) sums.zero_();
  } else {
    Launch("vlmtrain::norm_rotate_backward",
           {gradients.query, gradients.key, gradients.value, x.query, x.key, reciprocal, cos, sin},
           {of_x.query, of_x.key, of_x.value})(
        launchers().norm_rotate_backward,
        NormRotateBackward{.element = element_of(x.query),
                           .gain = norm.gain,
                           .rows = x.query.size(0),
                           .features = features,
                           .x_stride = common_stride(x.query, x.key),
                           .of_x_stride = common_stride(of_x.query, of_x.key),
                           .cos = cos.const_data_ptr<float>(),
                           .sin = sin.const_data_ptr<float>(),
                           .reciprocal = reciprocal.const_data_ptr<float>(),
                           .query = backward_heads(of_x.query, gradients.query, x.query, norm.query_weight),
                           .key = backward_heads(of_x.key, gradients.key, x.key, norm.key_weight),
                           .value = backward_heads(of_x.value, gradients.value, gradients.value, {}),
                           .warps = warps,
                           .of_weights = weights_wanted ? sums.mutable_data_ptr<float>() : nullptr});
  }
  if (!weights_wanted) return {};
  const at::Tensor both = sums.sum(0).to(norm.query_weight.scalar_type());
  return {both[0], both[1]};
}

}  // namespace vlmtrain::kernels
