#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "vlmtrain/kernels/launchers.h"

namespace vlmtrain::kernels {

/// Query, key and value heads, `[rows, heads, features]` each. The heads of a row are contiguous;
/// rows may be strided.
struct QkvHeads {
  at::Tensor query, key, value;
};

/// Rotates query and key heads by rotary position embeddings and copies the value heads. Feature i
/// pairs with i + features / 2. Rounds once; reads and writes every element once.
///
/// cos, sin: fp32 `[rows, 1, features / 2]`. direction: 1, or −1 for the inverse rotation, which is
/// also the gradient. REQUIRES: is_available(kRope, input.query).
void rope(const QkvHeads& output, const QkvHeads& input, const at::Tensor& cos, const at::Tensor& sin,
          double direction);

/// The RMSNorm that is applied to query and key heads before the rotation (QK-norm).
struct QkNormParams {
  at::Tensor query_weight, key_weight;  ///< [features], of the heads' type; key_weight may be undefined without keys
  NormGain gain = NormGain::kWeight;
  double eps = 0;
};

/// Returns whether qk_norm_rope() supports x: is_available(kQkNormRope, x), and heads have at most
/// kMaxQkNormFeatures features.
bool can_run_qk_norm_rope(const at::Tensor& x, int64_t features);

/// Normalizes query and key heads, x / sqrt(mean(x²) + eps) · gain over a head's features, and
/// rotates them as rope() does. Does not touch the value heads. Rounds once. Returns rstd = 1 /
/// sqrt(mean(x²) + eps), fp32 `[rows, query heads + key heads]`. REQUIRES: can_run_qk_norm_rope()
/// returned true; the queries and keys of `x` have equal row strides.
at::Tensor qk_norm_rope(const QkvHeads& output, const QkvHeads& x, const QkNormParams& norm, const at::Tensor& cos,
                        const at::Tensor& sin);

/// The gradients of QkNormParams's weights, `[features]`; undefined unless requested.
struct QkNormGradients {
  at::Tensor query_weight, key_weight;
};

/// Writes the gradients of x to `dx`, given `gradients` of qk_norm_rope()'s output, and copies the
/// gradients of the values. `rstd` is the result of qk_norm_rope(). If `compute_weight_gradients`,
/// returns the gradients of the weights, summed in fp32 and rounded once; else undefined tensors.
/// REQUIRES: the queries and keys of `x` have equal row strides, and those of `dx` too.
QkNormGradients qk_norm_rope_backward(const QkvHeads& dx, const QkvHeads& gradients, const QkvHeads& x,
                                      const at::Tensor& rstd, const QkNormParams& norm, const at::Tensor& cos,
                                      const at::Tensor& sin, bool compute_weight_gradients);

namespace reference {

// The same with ATen's operations, for tests: fp64, rounded once.

/// Rotates heads [rows, heads, features]; cos and sin fp32 [rows, 1, features / 2].
at::Tensor rope(const at::Tensor& heads, const at::Tensor& cos, const at::Tensor& sin, double direction);

/// Normalizes each of the heads [rows, heads, features] and rotates it; weight [features].
at::Tensor qk_norm_rope(const at::Tensor& heads, const at::Tensor& weight, NormGain gain, double eps,
                        const at::Tensor& cos, const at::Tensor& sin);

/// The gradients of the heads [rows, heads, features] and of the norm's weight [features].
struct QkNormRopeGradients {
  at::Tensor heads, weight;
};
QkNormRopeGradients qk_norm_rope_backward(const at::Tensor& gradient, const at::Tensor& heads, const at::Tensor& weight,
                                          NormGain gain, double eps, const at::Tensor& cos, const at::Tensor& sin);

}  // namespace reference

}  // namespace vlmtrain::kernels
