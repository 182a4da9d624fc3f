#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace vlmtrain::nn {

/// Cosine and sine of the rotary angles (Su et al. 2021, arXiv 2104.09864), fp32 [rows, 1, head_dim / 2], one row a
/// token.
struct RotaryTable {
  at::Tensor cos, sin;

  /// `position_ids` int64 [rows], `frequencies` fp32 [head_dim / 2] on the same device; angle of pair i at position p:
  /// p · frequencies[i]. `scale` multiplies cosine and sine.
  static RotaryTable of(const at::Tensor& position_ids, const at::Tensor& frequencies, double scale = 1);

  /// The same with a position on several axes: `position_ids` int64 [axes, rows]; pair i takes the position on axis
  /// `axes_of_pairs`[i], int64 [head_dim / 2] on the same device.
  static RotaryTable of_axes(const at::Tensor& position_ids, const at::Tensor& axes_of_pairs,
                             const at::Tensor& frequencies, double scale = 1);
};

/// theta^(−2i / head_dim) for each pair i: fp32 [head_dim / 2] on the CPU.
at::Tensor rotary_frequencies(int64_t head_dim, double theta);

/// Rotates x [rows, heads, head_dim], where feature i pairs with i + head_dim / 2 as in Llama.
at::Tensor apply_rotary(const at::Tensor& x, const RotaryTable& table);

}  // namespace vlmtrain::nn
