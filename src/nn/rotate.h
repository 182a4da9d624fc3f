#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "vlmtrain/kernels/rotate.h"

namespace vlmtrain::nn {

/// Rotates x into `rotated`, both [rows, heads, head_dim]. `direction` 1 rotates by the angle, −1 back: the gradient of
/// a rotation is the rotation back.
void apply_rope(const at::Tensor& rotated, const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin,
                double direction);

/// The three of x [rows, query | key | value].
kernels::Heads split_heads(const at::Tensor& x, int64_t query_heads, int64_t key_value_heads, int64_t features);

/// As they are, where heads of a row lie one after the other, as what attention gives do; else a copy in which they do.
at::Tensor make_rows_contiguous(const at::Tensor& heads);

/// Heads lie one after the other in the columns of x [rows, columns], from head `first` on: a view [rows, count,
/// features].
at::Tensor view_heads(const at::Tensor& x, int64_t first, int64_t count, int64_t features);

}  // namespace vlmtrain::nn
