#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "vlmtrain/nn/norm.h"
#include "vlmtrain/nn/weights/parameters.h"

namespace vlmtrain::nn {

/// Cosine and sine of the rotary angles (Su et al. 2021, arXiv 2104.09864), fp32 [rows, 1, head_dim / 2], one row a
/// token.
struct RotaryTable {
  at::Tensor cos, sin;

  /// `position_ids` int64 [rows], `frequencies` fp32 [head_dim / 2] on the same device; angle of pair i at position p:
  /// p · frequencies[i]. `scale` multiplies cosine and sine.
  static RotaryTable from_positions(const at::Tensor& position_ids, const at::Tensor& frequencies, double scale = 1);

  /// The same with a position on several axes: `position_ids` int64 [axes, rows]; pair i takes the position on axis
  /// `axes_of_pairs`[i], int64 [head_dim / 2] on the same device.
  static RotaryTable from_axes(const at::Tensor& position_ids, const at::Tensor& axes_of_pairs,
                               const at::Tensor& frequencies, double scale = 1);
};

/// theta^(−2i / head_dim) for each pair i: fp32 [head_dim / 2] on the CPU.
at::Tensor compute_inv_freq(int64_t head_dim, double theta);

/// What attention reads of each row.
struct HeadShape {
  int64_t num_heads = 0;            ///< heads
  int64_t num_key_value_heads = 0;  ///< heads of keys, and as many of values
  int64_t head_dim = 0;             ///< of a head
};

struct QueryKeyValue {
  at::Tensor query;       ///< [rows, heads, features]
  at::Tensor key, value;  ///< [rows, key_value, features]
};

/// The heads of x [rows, query | key | value], queries and keys rotated: feature i pairs with i + features / 2, as in
/// Llama. Keeps nothing of x.
QueryKeyValue split_and_rotate_heads(const at::Tensor& x, const HeadShape& heads, const RotaryTable& table);

/// An RmsNorm of each head's query and one of each head's key, ahead of their rotation (Yang et al. 2025, arXiv
/// 2505.09388: Qwen3). Keeps query and key of x and a number a head; what comes of it is made again in the backward
/// pass.
class QkNorm {
 public:
  /// Weights [features] at `scope` / "q_norm" and "k_norm".
  QkNorm(const ParameterScope& scope, int64_t features, double eps, NormGain gain = NormGain::kWeight);

  /// split_and_rotate_heads() of x with its queries and keys normed.
  QueryKeyValue split_and_rotate_heads(const at::Tensor& x, const HeadShape& heads, const RotaryTable& table) const;

 private:
  at::Tensor query_weight_, key_weight_;
  double eps_;
  NormGain gain_;
};

}  // namespace vlmtrain::nn
