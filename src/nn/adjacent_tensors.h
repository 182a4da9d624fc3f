#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorOptions.h>

#include <cstdint>
#include <vector>

namespace vlmtrain::nn {

/// Uninitialised tensors [rows[i], sizes...] that lie end to end in one allocation, and know nothing of each other.
std::vector<at::Tensor> allocate_adjacent(const std::vector<int64_t>& rows, at::IntArrayRef sizes,
                                          const at::TensorOptions& options);

/// Tensors that differ in their first dimension at most, as one along it: a view without gradients. Undefined where
/// there are none or they do not lie end to end.
at::Tensor cat_view(const std::vector<at::Tensor>& tensors);

}  // namespace vlmtrain::nn
