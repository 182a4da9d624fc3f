#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace vlmtrain::kernels {

/// Heads of queries, keys and values, [rows, heads, features] each; rows may be apart, heads of a row are not.
struct Heads {
  at::Tensor query, key, value;
};

/// Writes queries and keys rotated by the angles, cos and sin fp32 [rows, 1, features / 2], or back by them, and copies
/// the values. Feature i pairs with i + features / 2. REQUIRES: has(kRope, from.query). Rounds once; every element is
/// read and written once.
void rope(const Heads& output, const Heads& input, const at::Tensor& cos, const at::Tensor& sin, double direction);

}  // namespace vlmtrain::kernels
