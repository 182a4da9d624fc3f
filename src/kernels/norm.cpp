#include "vlmtrain/kernels/norm.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "kernels/launch.h"

namespace vlmtrain::kernels {

namespace {

const void* get_data_or_null(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.const_data_ptr() : nullptr;
}

/// Returns an uninitialized fp32 tensor with one value per row of x, [..., 1].
at::Tensor allocate_row_statistics(const at::Tensor& x) {
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes.back() = 1;
  return at::empty(sizes, x.options().dtype(at::kFloat));
}

bool is_contiguous_with_same_dtype(const at::Tensor& tensor, const at::Tensor& x) {
  return tensor.scalar_type() == x.scalar_type() && tensor.is_contiguous();
}

}  // namespace

bool can_run_norm(const at::Tensor& x, const NormParams& norm) {
  return is_available(Kernel::kNorm, x) && x.is_contiguous() && is_contiguous_with_same_dtype(norm.weight, x) &&
         (!norm.bias.defined() || is_contiguous_with_same_dtype(norm.bias, x));
}

NormResult norm(const at::Tensor& x, const NormParams& norm, const at::Tensor& residual) {
  NormResult result{.value = at::empty_like(x), .statistics = {.mean = {}, .rstd = allocate_row_statistics(x)}};
  if (norm.is_centered) result.statistics.mean = allocate_row_statistics(x);
  if (x.numel() == 0) return result;
  const auto& [mean, rstd] = result.statistics;
  const at::Tensor contiguous_residual = residual.defined() ? residual.contiguous() : residual;
  KernelLaunch("vlmtrain::norm", {x, norm.weight, norm.bias, contiguous_residual}, {result.value, mean, rstd})(
      launchers().norm_forward, NormForwardArgs{.element = get_element_type(x),
                                                .gain = norm.gain,
                                                .is_centered = norm.is_centered,
                                                .rows = rstd.numel(),
                                                .features = x.size(-1),
                                                .eps = static_cast<float>(norm.eps),
                                                .x = x.const_data_ptr(),
                                                .weight = norm.weight.const_data_ptr(),
                                                .bias = get_data_or_null(norm.bias),
                                                .residual = get_data_or_null(contiguous_residual),
                                                .value = result.value.mutable_data_ptr(),
                                                .mean = norm.is_centered ? mean.mutable_data_ptr<float>() : nullptr,
                                                .rstd = rstd.mutable_data_ptr<float>()});
  return result;
}

at::Tensor norm_backward(const at::Tensor& gradient, const at::Tensor& x, const NormStatistics& statistics,
                         const NormParams& norm, const at::Tensor& residual_gradient) {
  at::Tensor dx = at::empty_like(x);
  if (x.numel() == 0) return dx;
  const auto& [mean, rstd] = statistics;
  const at::Tensor dy = gradient.contiguous(), contiguous_residual = residual_gradient.defined()
                                                                         ? residual_gradient.contiguous()
                                                                         : residual_gradient;
  KernelLaunch("vlmtrain::norm_backward", {dy, x, norm.weight, contiguous_residual, mean, rstd}, {dx})(
      launchers().norm_backward, NormBackwardArgs{.element = get_element_type(x),
                                                  .gain = norm.gain,
                                                  .is_centered = norm.is_centered,
                                                  .rows = rstd.numel(),
                                                  .features = x.size(-1),
                                                  .gradient = dy.const_data_ptr(),
                                                  .x = x.const_data_ptr(),
                                                  .weight = norm.weight.const_data_ptr(),
                                                  .residual_gradient = get_data_or_null(contiguous_residual),
                                                  .mean = norm.is_centered ? mean.const_data_ptr<float>() : nullptr,
                                                  .rstd = rstd.const_data_ptr<float>(),
                                                  .dx = dx.mutable_data_ptr()});
  return dx;
}

}  // namespace vlmtrain::kernels
