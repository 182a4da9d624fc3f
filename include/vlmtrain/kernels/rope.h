#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "vlmtrain/kernels/launchers.h"

namespace vlmtrain::kernels {

/// Query, key and value heads, `[rows, heads, features]` each. The heads of a row are contiguous; rows may
/// be strided.
struct Heads {
  at::Tensor query, key, value;
};

/// Rotates query and key heads by rotary position embeddings and copies the value heads. Feature i pairs
/// with i + features / 2. Rounds once; reads and writes every element once.
///
/// cos, sin: fp32 `[rows, 1, features / 2]`. direction: 1, or −1 for the inverse rotation, which is also
/// the gradient. REQUIRES: has(kRope, input.query).
void rope(const Heads& output, const Heads& input, const at::Tensor& cos, const at::Tensor& sin, double direction);

/// The RMSNorm that is applied to query and key heads before the rotation (QK-norm).
struct HeadNorm {
  at::Tensor query_weight, key_weight;  ///< [features], of the heads' type
  Gain gain = Gain::kWeight;
  double eps = 0;
};

/// Returns whether qk_norm_rope() supports x: has(kQkNormRope, x), and at most kMaxQkNormFeatures
/// features per head.
bool can_qk_norm_rope(const at::Tensor& x, int64_t features);

/// Normalizes query and key heads, x / sqrt(mean(x²) + eps) · gain over a head's features, and rotates
/// them as rope() does. Does not touch the value heads. Rounds once. Returns rstd = 1 / sqrt(mean(x²) +
/// eps), fp32 `[rows, query heads + key heads]`. REQUIRES: can_qk_norm_rope(); the queries and keys of
/// `x` have equal row strides.
at::Tensor qk_norm_rope(const Heads& output, const Heads& x, const HeadNorm& norm, const at::Tensor& cos,
                        const at::Tensor& sin);

/// Gradients of HeadNorm's weights, `[features]`.
struct HeadNormGradients {
  at::Tensor query_weight, key_weight;
};

/// Writes the gradients of x to `dx` for the gradients of qk_norm_rope()'s output, and copies the
/// gradients of the values. Returns the gradients of the weights, summed in fp32 and rounded once, if
/// `compute_weight_gradients`, else undefined tensors.
HeadNormGradients qk_norm_rope_backward(const Heads& dx, const Heads& gradients, const Heads& x, const at::Tensor& rstd,
                                        const HeadNorm& norm, const at::Tensor& cos, const at::Tensor& sin,
                                        bool compute_weight_gradients);

}  // namespace vlmtrain::kernels
