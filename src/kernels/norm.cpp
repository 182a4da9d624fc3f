#include "vlmtrain/kernels/norm.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "kernels/launch.h"

namespace vlmtrain::kernels {

namespace {

const void* place_of(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.const_data_ptr() : nullptr;
}

/// One number a row of x.
at::Tensor empty_by_row(const at::Tensor& x) {
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes.back() = 1;
  return at::empty(sizes, x.options().dtype(at::kFloat));
}

bool is_dense_as(const at::Tensor& tensor, const at::Tensor& x) {
  return tensor.scalar_type() == x.scalar_type() && tensor.is_contiguous();
}

}  // namespace

bool can_norm(const at::Tensor& x, const Norm& norm) {
  return has(Kernel::kNorm, x) && x.is_contiguous() && is_dense_as(norm.weight, x) &&
         (!norm.bias.defined() || is_dense_as(norm.bias, x));
}

Normed norm(const at::Tensor& x, const Norm& norm, const at::Tensor& residual) {
  Normed made{.value = at::empty_like(x), .statistics = {.mean = {}, .reciprocal = empty_by_row(x)}};
  if (norm.is_centered) made.statistics.mean = empty_by_row(x);
  if (x.numel() == 0) return made;
  const auto& [mean, reciprocal] = made.statistics;
  const at::Tensor added = residual.defined() ? residual.contiguous() : residual;
  Launch("vlmtrain::norm", {x, norm.weight, norm.bias, added}, {made.value, mean, reciprocal})(
      launchers().norm_forward, NormForward{.element = element_of(x),
                                            .gain = norm.gain,
                                            .is_centered = norm.is_centered,
                                            .rows = reciprocal.numel(),
                                            .features = x.size(-1),
                                            .eps = static_cast<float>(norm.eps),
                                            .x = x.const_data_ptr(),
                                            .weight = norm.weight.const_data_ptr(),
                                            .bias = place_of(norm.bias),
                                            .residual = place_of(added),
                                            .value = made.value.mutable_data_ptr(),
                                            .mean = norm.is_centered ? mean.mutable_data_ptr<float>() : nullptr,
                                            .reciprocal = reciprocal.mutable_data_ptr<float>()});
  return made;
}

at::Tensor norm_backward(const at::Tensor& gradient, const at::Tensor& x, const NormStatistics& statistics,
                         const Norm& norm, const at::Tensor& passing) {
  at::Tensor of_x = at::empty_like(x);
  if (x.numel() == 0) return of_x;
  const auto& [mean, reciprocal] = statistics;
  const at::Tensor of_value = gradient.contiguous(), added = passing.defined() ? passing.contiguous() : passing;
  Launch("vlmtrain::norm_backward", {of_value, x, norm.weight, added, mean, reciprocal}, {of_x})(
      launchers().norm_backward, NormBackward{.element = element_of(x),
                                              .gain = norm.gain,
                                              .is_centered = norm.is_centered,
                                              .rows = reciprocal.numel(),
                                              .features = x.size(-1),
                                              .gradient = of_value.const_data_ptr(),
                                              .x = x.const_data_ptr(),
                                              .weight = norm.weight.const_data_ptr(),
                                              .passing = place_of(added),
                                              .mean = norm.is_centered ? mean.const_data_ptr<float>() : nullptr,
                                              .reciprocal = reciprocal.const_data_ptr<float>(),
                                              .of_x = of_x.mutable_data_ptr()});
  return of_x;
}

}  // namespace vlmtrain::kernels
