#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "vlmtrain/nn/layers/norm.h"
#include "vlmtrain/nn/weights/parameters.h"

namespace vlmtrain::nn {

/// Cosine and sine of the angles of rotary position embeddings (RoPE; Su et al. 2021, arXiv
/// 2104.09864), fp32 [rows, 1, rotary_dim / 2], one row per token. Pair i of a head is features i
/// and i + rotary_dim / 2. With partial RoPE, rotary_dim is less than head_dim, and the features
/// from rotary_dim on do not rotate.
///
/// With `num_parts` > 1, a head consists of equal parts that rotate separately, each by its share of
/// the table's columns: the pairs are features i and i + part / 2 of a part. REQUIRES then:
/// rotary_dim = head_dim.
struct RotaryTable {
  at::Tensor cos, sin;
  int64_t num_parts = 1;

  /// Returns the table of angles position · frequencies[i] for pair i. `scale` multiplies cosine
  /// and sine (attention_factor in transformers). `position_ids` int64 [rows]; `frequencies` fp32
  /// [rotary_dim / 2] on the same device.
  static RotaryTable from_positions(const at::Tensor& position_ids, const at::Tensor& frequencies, double scale = 1);

  /// Returns the same for positions on several axes, such as time, height and width: `position_ids`
  /// int64 [axes, rows]. Pair i uses the position on axis `pair_axes`[i], int64 [rotary_dim / 2]
  /// on the same device.
  static RotaryTable from_axes(const at::Tensor& position_ids, const at::Tensor& pair_axes,
                               const at::Tensor& frequencies, double scale = 1);
};

/// Returns the frequencies theta^(−2i / head_dim) of each pair i, fp32 [head_dim / 2] on the CPU.
at::Tensor compute_inv_freq(int64_t head_dim, double theta);

/// The heads of an attention layer.
struct HeadShape {
  int64_t num_heads = 0;             ///< query heads
  int64_t num_key_value_heads = 0;   ///< key heads, and also value heads
  int64_t head_dim = 0;              ///< features of a head
  bool has_value_projection = true;  ///< false: values are the keys before their norm and rotation, and x has no value
                                     ///< columns
};

/// The inputs of an attention layer.
struct QueryKeyValue {
  at::Tensor query;       ///< [rows, num_heads, head_dim]
  at::Tensor key, value;  ///< [rows, num_key_value_heads, head_dim]
};

/// Splits x [rows, query | key | value] into heads and rotates queries and keys. For the backward
/// pass it saves the table, but nothing of x. REQUIRES: heads.has_value_projection.
QueryKeyValue split_and_rotate_heads(const at::Tensor& x, const HeadShape& heads, const RotaryTable& table);

/// RMS norms of each head's query and key before their rotation (Yang et al. 2025, arXiv
/// 2505.09388: Qwen3). For the backward pass it saves the unnormalized queries and keys and one
/// number per head, and recomputes the rest.
class QkNorm {
 public:
  /// Adds `q_norm.weight` and `k_norm.weight` [features] under `scope`; `features` is head_dim.
  /// `initial_query_gain`: the initial gain of queries.
  QkNorm(const ParameterScope& scope, int64_t features, double eps, NormGain gain = NormGain::kWeight,
         double initial_query_gain = 1);

  /// Splits and rotates as nn::split_and_rotate_heads(), with normalized queries and keys.
  QueryKeyValue split_and_rotate_heads(const at::Tensor& x, const HeadShape& heads, const RotaryTable& table) const;

 private:
  at::Tensor query_weight_, key_weight_;
  double eps_;
  NormGain gain_;
};

/// The QkNorm of an attention layer that has queries only and reads the keys of another layer.
class QueryNorm {
 public:
  /// Adds `q_norm.weight` [features] under `scope`; see QkNorm.
  QueryNorm(const ParameterScope& scope, int64_t features, double eps, NormGain gain = NormGain::kWeight,
            double initial_query_gain = 1);

  /// Splits x [rows, heads · features] into heads, normalizes and rotates them. Returns [rows, heads,
  /// features].
  at::Tensor split_and_rotate_heads(const at::Tensor& x, int64_t num_heads, const RotaryTable& table) const;

 private:
  at::Tensor weight_;
  double eps_;
  NormGain gain_;
};

/// Interpolates in a table of embeddings: row i of the result is Σₖ weights[k][i] ·
/// table[indices[k][i]]. `table` [rows, features]; `indices` int64 and `weights` fp32 [taps, n],
/// both without gradients. Returns [n, features] in the dtype of the table, summed in fp32 (fp64
/// for fp64). Saves indices and weights.
at::Tensor sum_weighted_rows(const at::Tensor& table, const at::Tensor& indices, const at::Tensor& weights);

}  // namespace vlmtrain::nn
