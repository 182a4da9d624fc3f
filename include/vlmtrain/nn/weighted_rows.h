#pragma once

#include <ATen/core/Tensor.h>

namespace vlmtrain::nn {

/// Row i of the result is Σₖ weights[k][i] · table[entries[k][i]]: what interpolation in a table of embeddings is.
/// `table` [rows, features], `entries` int64 and `weights` fp32 [taps, n], which get no gradient → [n, features] of the
/// table's dtype, summed in fp32 (fp64 of such a table). Keeps entries and weights.
at::Tensor weighted_rows(const at::Tensor& table, const at::Tensor& entries, const at::Tensor& weights);

}  // namespace vlmtrain::nn
