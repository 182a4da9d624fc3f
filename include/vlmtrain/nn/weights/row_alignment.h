#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorOptions.h>

#include <cstdint>

namespace vlmtrain::nn {

// cuBLAS has fast kernels only for matrices whose rows begin at multiples of 16 bytes
// (docs/explanation/kernels.md). Matrices of other widths get columns of zeros at the end.

/// Returns the number of columns of a matrix with `width` columns and zeros at the end: the smallest
/// number, at least `width`, whose rows have a multiple of 16 bytes on CUDA; `width` on other
/// devices. VLMTRAIN_ROW_ALIGNMENT sets another number of bytes for all devices, a power of two up to
/// 4096. Throws UserError (kUsage) for other values of the variable.
int64_t align_width(int64_t width, const at::TensorOptions& options);

/// Returns uninitialized rows [rows, width], a view of a matrix with align_width() columns.
at::Tensor allocate_aligned_rows(int64_t rows, int64_t width, const at::TensorOptions& options);

/// Returns matrix [rows, width] with zeros up to `columns` columns: a new matrix, or `matrix` itself if
/// it has as many. Records gradients.
at::Tensor pad_columns(const at::Tensor& matrix, int64_t columns);

/// Returns pad_columns() for align_width() columns.
at::Tensor pad_to_aligned_width(const at::Tensor& matrix);

}  // namespace vlmtrain::nn
