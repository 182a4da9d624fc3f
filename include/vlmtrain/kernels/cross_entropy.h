#pragma once

#include <ATen/core/Tensor.h>

namespace vlmtrain::kernels {

/// Of each row of logits, fp32 [rows, 1].
struct CrossEntropyRows {
  at::Tensor cross_entropy;  ///< with the row's label
  at::Tensor is_correct;     ///< 1 where no logit is larger than the label's, else 0
};

/// The cross-entropy of `logits`, dense [rows, vocabulary] in fp32, bf16 or fp16, with `labels`, int64 [rows]; computed
/// in fp32. Where a `compute_gradient`, logits become that of Σ factor · row_factors · cross-entropy with respect to
/// them, rounded once; `row_factors` fp32 [rows], or undefined for 1. REQUIRES: has(kCrossEntropy, logits).
CrossEntropyRows cross_entropy(const at::Tensor& logits, const at::Tensor& labels, double factor,
                               const at::Tensor& row_factors, bool compute_gradient);

}  // namespace vlmtrain::kernels
