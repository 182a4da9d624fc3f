#include "vlmtrain/kernels/norm.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>

#include "kernels/launch.h"
#include "kernels/self_test.h"
#include "vlmtrain/kernels/rows.h"

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
  return is_available(Kernel::kNorm, x) && has_dense_rows(x) && is_contiguous_with_same_dtype(norm.weight, x) &&
         (!norm.bias.defined() || is_contiguous_with_same_dtype(norm.bias, x));
}

NormResult norm(const at::Tensor& x, const NormParams& norm, const at::Tensor& residual, int64_t border_columns) {
  NormResult result{.value = allocate_bordered_rows(x.sizes(), border_columns, x.options()),
                    .statistics = {.mean = {}, .rstd = allocate_row_statistics(x)}};
  if (norm.is_centered) result.statistics.mean = allocate_row_statistics(x);
  if (x.numel() == 0) return result;
  const auto& [mean, rstd] = result.statistics;
  const at::Tensor residual_rows = make_dense_rows(residual);
  KernelLaunch("vlmtrain::norm", {x, norm.weight, norm.bias, residual_rows}, {result.value, mean, rstd})(
      launchers().norm_forward, NormForwardArgs{.element = get_element_type(x),
                                                .gain = norm.gain,
                                                .is_centered = norm.is_centered,
                                                .rows = rstd.numel(),
                                                .features = x.size(-1),
                                                .x_stride = get_row_stride(x),
                                                .residual_stride = get_row_stride(residual_rows),
                                                .value_stride = get_row_stride(result.value),
                                                .eps = static_cast<float>(norm.eps),
                                                .x = x.const_data_ptr(),
                                                .weight = norm.weight.const_data_ptr(),
                                                .bias = get_data_or_null(norm.bias),
                                                .residual = get_data_or_null(residual_rows),
                                                .value = result.value.mutable_data_ptr(),
                                                .mean = norm.is_centered ? mean.mutable_data_ptr<float>() : nullptr,
                                                .rstd = rstd.mutable_data_ptr<float>()});
  return result;
}

at::Tensor norm_backward(const at::Tensor& gradient, const at::Tensor& x, const NormStatistics& statistics,
                         const NormParams& norm, const at::Tensor& residual_gradient) {
  at::Tensor dx = allocate_rows_like(x);
  if (x.numel() == 0) return dx;
  const auto& [mean, rstd] = statistics;
  const at::Tensor dy = make_dense_rows(gradient), residual_rows = make_dense_rows(residual_gradient);
  KernelLaunch("vlmtrain::norm_backward", {dy, x, norm.weight, residual_rows, mean, rstd}, {dx})(
      launchers().norm_backward, NormBackwardArgs{.element = get_element_type(x),
                                                  .gain = norm.gain,
                                                  .is_centered = norm.is_centered,
                                                  .rows = rstd.numel(),
                                                  .features = x.size(-1),
                                                  .gradient_stride = get_row_stride(dy),
                                                  .x_stride = get_row_stride(x),
                                                  .residual_gradient_stride = get_row_stride(residual_rows),
                                                  .dx_stride = get_row_stride(dx),
                                                  .gradient = dy.const_data_ptr(),
                                                  .x = x.const_data_ptr(),
                                                  .weight = norm.weight.const_data_ptr(),
                                                  .residual_gradient = get_data_or_null(residual_rows),
                                                  .mean = norm.is_centered ? mean.const_data_ptr<float>() : nullptr,
                                                  .rstd = rstd.const_data_ptr<float>(),
                                                  .dx = dx.mutable_data_ptr()});
  return dx;
}

namespace reference {

namespace {

at::Tensor compute_gain(const at::Tensor& weight, NormGain gain) {
  const at::Tensor weight_fp64 = weight.to(at::kDouble);
  return gain == NormGain::kOnePlusWeight ? weight_fp64 + 1 : weight_fp64;
}

/// Normalized values x̂ = (x − mean) · rstd, and rstd.
struct NormalizedRows {
  at::Tensor value, rstd;
};

NormalizedRows normalize_rows(const at::Tensor& x, const NormParams& norm) {
  const at::Tensor centered = norm.is_centered ? x - x.mean(-1, /*keepdim=*/true) : x;
  const at::Tensor rstd = centered.square().mean(-1, /*keepdim=*/true).add_(norm.eps).rsqrt_();
  return {centered * rstd, rstd};
}

}  // namespace

at::Tensor norm(const at::Tensor& x, const NormParams& norm, const at::Tensor& residual) {
  at::Tensor value = normalize_rows(x.to(at::kDouble), norm).value * compute_gain(norm.weight, norm.gain);
  if (norm.bias.defined()) value = value + norm.bias;
  if (residual.defined()) value = value + residual;
  return value.to(x.scalar_type());
}

at::Tensor norm_backward(const at::Tensor& gradient, const at::Tensor& x, const NormParams& norm,
                         const at::Tensor& residual_gradient) {
  const auto [value, rstd] = normalize_rows(x.to(at::kDouble), norm);
  const at::Tensor dxhat = gradient.to(at::kDouble) * compute_gain(norm.weight, norm.gain);
  at::Tensor dx = dxhat - value * (dxhat * value).mean(-1, /*keepdim=*/true);
  if (norm.is_centered) dx = dx - dxhat.mean(-1, /*keepdim=*/true);
  dx = dx * rstd;
  if (residual_gradient.defined()) dx = dx + residual_gradient;
  return dx.to(x.scalar_type());
}

}  // namespace reference

std::vector<ComparedTensors> test_norm(RandomInputs& inputs, const KernelTestSizes& sizes) {
  std::vector<ComparedTensors> compared_tensors;
  for (const int64_t columns : sizes.columns) {
    for (const bool is_centered : {false, true}) {
      const at::Tensor x = inputs.make_tensor({sizes.rows, columns}),
                       residual = inputs.make_tensor({sizes.rows, columns});
      const NormParams params{.weight = inputs.make_tensor({columns}),
                              .bias = is_centered ? inputs.make_tensor({columns}) : at::Tensor(),
                              .gain = is_centered ? NormGain::kWeight : NormGain::kOnePlusWeight,
                              .is_centered = is_centered,
                              .eps = 1e-6};
      const at::Tensor gradient = inputs.make_tensor({sizes.rows, columns});
      const NormResult actual = norm(x, params, residual);
      compared_tensors.push_back({actual.value, reference::norm(x, params, residual)});
      const at::Tensor expected_dx = reference::norm_backward(gradient, x, params, residual);
      compared_tensors.push_back({norm_backward(gradient, x, actual.statistics, params, residual), expected_dx});
      const at::Tensor bordered_x = copy_to_bordered_rows(x);
      compared_tensors.push_back({norm(bordered_x, params, residual, kTestBorderColumns).value, actual.value});
      compared_tensors.push_back(
          {norm_backward(gradient, bordered_x, actual.statistics, params, residual), expected_dx});
    }
  }
  return compared_tensors;
}

}  // namespace vlmtrain::kernels
