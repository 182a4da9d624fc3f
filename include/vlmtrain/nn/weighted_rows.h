#pragma once

#include <ATen/core/Tensor.h>

namespace vlmtrain::nn {

/// Row i of the result is Σₖ weights[k][i] · table[entries[k][i]]: what interpolation in a table of embeddings is.
/// `table` [rows, features], `indices` int64 and `weights` fp32 [taps, n], which get no gradient → [n, features] of the
/// table's dtype, summed in fp32 (fp64 of such a table). Keeps entries and weights.
at::Tensor weighted_row_sum(const at::Tensor& table, const at::Tensor& indices, const at::Tensor& weights);

}  // namespace vlmtrain::nn
