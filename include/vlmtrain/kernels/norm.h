#pragma once

#include <ATen/core/Tensor.h>

#include "vlmtrain/kernels/launchers.h"

namespace vlmtrain::kernels {

/// Parameters of a LayerNorm (centered) or an RMSNorm (not centered).
struct NormParams {
  at::Tensor weight;     ///< [features], of x's type
  at::Tensor bias = {};  ///< [features], of x's type; undefined: 0
  NormGain gain = NormGain::kWeight;
  bool is_centered = false;  ///< subtract the mean
  double eps = 0;
};

/// Statistics of each row for the backward pass, fp32 `[..., 1]`.
struct NormStatistics {
  at::Tensor mean;  ///< undefined if not centered
  at::Tensor rstd;  ///< 1 / sqrt(variance + eps)
};

/// The output of norm().
struct NormResult {
  at::Tensor value;  ///< of x's shape and type
  NormStatistics statistics;
};

/// Returns whether norm() supports x: is_available(kNorm, x), x is contiguous or a matrix with
/// contiguous rows, and weight and bias are contiguous and of x's type.
bool can_run_norm(const at::Tensor& x, const NormParams& norm);

/// Returns (x − mean) / sqrt(variance + eps) · gain + bias over the last dimension. Adds
/// `residual`, of x's shape and type, if it is defined. The mean is 0 if not centered. Computes in
/// fp32 and rounds once. Rows of the value are followed by `border_columns` uninitialized columns.
/// REQUIRES: can_run_norm(x, norm); x is a matrix if `border_columns` is not 0.
NormResult norm(const at::Tensor& x, const NormParams& norm, const at::Tensor& residual = {},
                int64_t border_columns = 0);

/// Returns dx, with the row stride of x, given `gradient`, the gradient of norm()'s value. Adds
/// `residual_gradient`, of x's shape and type, if it is defined. Rounds once. REQUIRES:
/// can_run_norm(x, norm).
at::Tensor norm_backward(const at::Tensor& gradient, const at::Tensor& x, const NormStatistics& statistics,
                         const NormParams& norm, const at::Tensor& residual_gradient = {});

namespace reference {

// The same with ATen's operations, for tests: fp64, rounded once.

at::Tensor norm(const at::Tensor& x, const NormParams& norm, const at::Tensor& residual);
at::Tensor norm_backward(const at::Tensor& gradient, const at::Tensor& x, const NormParams& norm,
                         const at::Tensor& residual_gradient);

}  // namespace reference

}  // namespace vlmtrain::kernels
