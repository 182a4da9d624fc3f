#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorOptions.h>

#include <cstdint>
#include <vector>

namespace vlmtrain::nn {

/// Returns uninitialized tensors [rows[i], sizes...], adjacent in one allocation. They are not
/// views of one another, so autograd tracks their versions separately.
std::vector<at::Tensor> allocate_adjacent_tensors(const std::vector<int64_t>& rows, at::IntArrayRef sizes,
                                                  const at::TensorOptions& options);

/// Returns adjacent tensors concatenated along the first dimension, as a view without gradients.
/// Returns an undefined tensor if `tensors` is empty or not adjacent in memory. REQUIRES: the
/// tensors differ at most in their first dimension.
at::Tensor view_adjacent_tensors(const std::vector<at::Tensor>& tensors);

}  // namespace vlmtrain::nn
