#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace vlmtrain::kernels {

// Kernels process rows of elements that are adjacent in memory. The rows of a matrix may have a
// stride larger than their length. The columns between rows are called a border if nothing else uses
// them.

/// Returns whether x is contiguous or a matrix whose rows are.
bool has_dense_rows(const at::Tensor& x);

/// Returns x if it has dense rows, else a contiguous copy. An undefined tensor is returned.
at::Tensor make_dense_rows(const at::Tensor& x);

/// Returns the elements between rows, where the last dimension is a row; 0 for an undefined tensor.
/// REQUIRES: has_dense_rows(x) if x is defined.
int64_t get_row_stride(const at::Tensor& x);

/// Returns an uninitialized tensor with a border of `border_columns` columns after its rows; contiguous
/// if that is 0. Throws InternalError if a tensor that is not a matrix would have a border.
at::Tensor allocate_bordered_rows(at::IntArrayRef sizes, int64_t border_columns, const at::TensorOptions& options);

/// Returns an uninitialized tensor of the sizes, dtype and row stride of x, with a border of the columns
/// between rows; contiguous if x is a slice of a matrix at least twice as wide. REQUIRES:
/// has_dense_rows(x).
at::Tensor allocate_rows_like(const at::Tensor& x);

/// Returns the columns of the border of a tensor that one of the functions above returned; 0 for all
/// other tensors, such as slices of wider matrices and views. Autograd passes gradients on without
/// making views.
int64_t get_border_columns(const at::Tensor& x);

/// Returns the rows with their border, [rows, columns + border columns].
at::Tensor view_with_border(const at::Tensor& x);

}  // namespace vlmtrain::kernels
