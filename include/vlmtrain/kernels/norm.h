#pragma once

#include <ATen/core/Tensor.h>

#include "vlmtrain/kernels/launchers.h"

namespace vlmtrain::kernels {

/// A LayerNorm, or an RMSNorm where it is not centered.
struct Norm {
  at::Tensor weight;     ///< [features], of x's type
  at::Tensor bias = {};  ///< the same; undefined: none
  Gain gain = Gain::kWeight;
  bool is_centered = false;
  double eps = 0;
};

/// What of a row's statistics the backward pass needs, fp32 [..., 1].
struct NormStatistics {
  at::Tensor mean;  ///< undefined where it is not centered
  at::Tensor rstd;  ///< 1 / sqrt(variance + eps)
};

struct NormResult {
  at::Tensor value;  ///< of x's shape and type
  NormStatistics statistics;
};

/// Whether norm() can do it: has(kNorm, x), x dense and the weights of its type.
bool can_run_norm(const at::Tensor& x, const Norm& norm);

/// (x − mean) / sqrt(variance + eps) · gain + bias over the last dimension, and `residual`, of x's shape, where it is
/// defined. Computes in fp32 and rounds once.
NormResult norm(const at::Tensor& x, const Norm& norm, const at::Tensor& residual = {});

/// The gradient of x for that of the value, and `residual_gradient` added to it, of x's shape, where it is defined.
/// Rounds once.
at::Tensor norm_backward(const at::Tensor& gradient, const at::Tensor& x, const NormStatistics& statistics,
                         const Norm& norm, const at::Tensor& residual_gradient = {});

}  // namespace vlmtrain::kernels
