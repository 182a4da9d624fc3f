#pragma once

#include <ATen/core/Tensor.h>

#include "vlmtrain/nn/norm.h"

namespace vlmtrain::nn {

struct RmsNormResult {
  at::Tensor value;  ///< of x's dtype and shape
  at::Tensor rstd;   ///< 1 / sqrt(mean(x²) + eps) of each row, in fp32 or fp64
};

/// x / sqrt(mean(x²) + eps) · weight over the last dimension of a contiguous x; without a weight where it is undefined.
/// Records no gradients.
RmsNormResult rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps);

/// `value` times the gain that `weight` stands for, in its place.
void multiply_by_gain(at::Tensor& value, const at::Tensor& weight, NormGain gain);

/// The initial values of such a weight: those of a gain of 1.
InitialValues unit_gain(NormGain gain);

struct RmsNormGradients {
  at::Tensor x, weight;  ///< undefined where they were not wanted
};

/// Of rms_norm()'s value. `gradient` is contiguous.
RmsNormGradients rms_norm_backward(const at::Tensor& gradient, const at::Tensor& x, const at::Tensor& rstd,
                                   const at::Tensor& weight, bool needs_dx, bool needs_dweight);

}  // namespace vlmtrain::nn
