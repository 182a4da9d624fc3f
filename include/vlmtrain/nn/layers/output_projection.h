#pragma once

#include <ATen/core/Tensor.h>

#include "vlmtrain/nn/layers/matmul.h"

namespace vlmtrain::nn {

/// The projection from hidden states to logits, hidden · weightᵀ, with an optional soft cap.
struct OutputProjection {
  const at::Tensor& weight;  ///< [vocabulary, features]; must outlive the object
  /// Positive bound of cap · tanh(logit / cap), which replaces each logit; 0: no cap.
  /// final_logit_softcapping in transformers, which computes it in the logits' dtype, here fp32.
  double logit_soft_cap = 0;
};

/// Returns the logits of `hidden` [rows, features], fp32 [rows, vocabulary]. Records no gradients.
inline at::Tensor compute_logits(const at::Tensor& hidden, const OutputProjection& projection) {
  const at::Tensor logits = matmul_transposed(hidden, projection.weight).to(at::kFloat);
  const double cap = projection.logit_soft_cap;
  return cap > 0 ? logits.div_(cap).tanh_().mul_(cap) : logits;
}

}  // namespace vlmtrain::nn
