#pragma once

#include <ATen/core/Tensor.h>

namespace vlmtrain::kernels {

/// The results for each row of logits, fp32 `[rows, 1]`.
struct CrossEntropyResult {
  at::Tensor cross_entropy;
  at::Tensor is_correct;  ///< 1 if no logit, after the soft cap, is larger than the label's, else 0
};

/// Computes the cross-entropy of `logits` with `labels` in fp32. A positive `logit_soft_cap`
/// replaces each logit by cap · tanh(logit / cap), also in fp32; 0: no cap. If `compute_gradient`,
/// overwrites the logits with the gradient of Σ factor · row_factors · cross-entropy, rounded once
/// to their type; else leaves them unchanged.
///
/// logits: `[rows, vocabulary]`, fp32, bf16 or fp16; rows are dense. They may be
/// further apart; elements between them may then be overwritten. labels: int64 `[rows]`,
/// each in [0, vocabulary). row_factors: fp32 `[rows]`, or undefined for 1. REQUIRES: is_available(kCrossEntropy,
/// logits).
CrossEntropyResult cross_entropy(const at::Tensor& logits, const at::Tensor& labels, double factor,
                                 const at::Tensor& row_factors, bool compute_gradient, double logit_soft_cap = 0);

namespace reference {

/// The results for each row, fp32 [rows, 1], and the gradient of the logits [rows, vocabulary].
struct CrossEntropyAndGradient {
  at::Tensor cross_entropy, is_correct, logits_gradient;
};
/// The same with ATen's operations, for tests: fp64, rounded once.
CrossEntropyAndGradient cross_entropy(const at::Tensor& logits, const at::Tensor& labels, double factor,
                                      const at::Tensor& row_factors, double logit_soft_cap = 0);

}  // namespace reference

}  // namespace vlmtrain::kernels
