#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "vlmtrain/kernels/launchers.h"

namespace vlmtrain::kernels {

/// Heads of queries, keys and values, [rows, heads, features] each; rows may be apart, heads of a row are not.
struct Heads {
  at::Tensor query, key, value;
};

/// Writes queries and keys rotated by the angles, cos and sin fp32 [rows, 1, features / 2], or back by them, and copies
/// the values. Feature i pairs with i + features / 2. REQUIRES: has(kRope, from.query). Rounds once; every element is
/// read and written once.
void rope(const Heads& output, const Heads& input, const at::Tensor& cos, const at::Tensor& sin, double direction);

/// What heads are normed with, ahead of their rotation.
struct HeadNorm {
  at::Tensor query_weight, key_weight;  ///< [features], of the heads' type
  Gain gain = Gain::kWeight;
  double eps = 0;
};

/// Whether qk_norm_rope() can do it: has(kQkNormRope, x), and heads of at most 256 features.
bool can_qk_norm_rope(const at::Tensor& x, int64_t features);

/// Writes the heads of `to.query` and `to.key`: those of `x` normed, x / sqrt(mean(x²) + eps) · gain over the features,
/// and rotated by the angles (rotate.h). Both have [rows, heads, features]; rows may be apart, as far for x's keys as
/// for its queries. Values are not touched. Gives 1 / sqrt(mean(x²) + eps), fp32 [rows, heads of queries, then of
/// keys]. Rounds once.
at::Tensor qk_norm_rope(const Heads& output, const Heads& x, const HeadNorm& norm, const at::Tensor& cos,
                        const at::Tensor& sin);

/// The gradients of both weights.
struct HeadNormGradients {
  at::Tensor query_weight, key_weight;
};

/// Writes the gradients of x, for those of what qk_norm_rope() gave, and copies that of the values. Of the weights'
/// gradients, where they are `expected`, sums are rounded once; they are undefined else.
HeadNormGradients qk_norm_rope_backward(const Heads& dx, const Heads& gradients, const Heads& x, const at::Tensor& rstd,
                                        const HeadNorm& norm, const at::Tensor& cos, const at::Tensor& sin,
                                        bool compute_weight_gradients);

}  // namespace vlmtrain::kernels
