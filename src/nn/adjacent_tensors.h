#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorOptions.h>

#include <cstdint>
#include <vector>

namespace vlmtrain::nn {

/// Returns a tensor that shares the storage of `all` but is not a view of it. Views would share a
/// version counter: an in-place change of one would count as a change of all.
at::Tensor make_alias(const at::Tensor& all, int64_t offset, at::IntArrayRef sizes, at::IntArrayRef strides);

/// Returns uninitialized tensors [rows[i], sizes...], adjacent in one allocation. They are not
/// views of one another, so autograd tracks their versions separately. Each tensor begins at a row
/// that is a multiple of `row_alignment`; the rows between tensors and after the last one are zero.
std::vector<at::Tensor> allocate_adjacent_tensors(const std::vector<int64_t>& rows, at::IntArrayRef sizes,
                                                  const at::TensorOptions& options, int64_t row_alignment = 1);

/// Returns the same for matrices [rows[i], columns], in `row_stride` columns of which the last are
/// zero. REQUIRES: row_stride >= columns.
std::vector<at::Tensor> allocate_adjacent_matrices(const std::vector<int64_t>& rows, int64_t columns,
                                                   int64_t row_stride, const at::TensorOptions& options,
                                                   int64_t row_alignment);

/// Returns adjacent tensors concatenated along the first dimension, as a view without gradients.
/// With `row_alignment`, the view has the rows between the tensors and after the last one, as
/// allocate_adjacent_tensors() placed them. Returns an undefined tensor if `tensors` is empty or they
/// are not placed like that. REQUIRES: the tensors differ at most in their first dimension.
at::Tensor view_adjacent_tensors(const std::vector<at::Tensor>& tensors, int64_t row_alignment = 1);

}  // namespace vlmtrain::nn
