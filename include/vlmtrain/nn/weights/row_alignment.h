#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorOptions.h>

#include <cstdint>

namespace vlmtrain::nn {

// cuBLAS needs matrices whose rows begin at multiples of 16 bytes for its fast kernels; on an H200,
// others take 2.8 times as long (docs/benchmarks/speed.md). Matrices of other widths therefore get
// columns of zeros at the end.

/// Returns the number of columns of a matrix with `width` columns and zeros at the end: the smallest
/// number, at least `width`, whose rows have a multiple of 16 bytes on CUDA; `width` on other
/// devices. VLMTRAIN_ROW_ALIGNMENT sets another number of bytes, a power of two, for all devices.
/// Throws UserError (kUsage) for other values of the variable.
int64_t align_width(int64_t width, const at::TensorOptions& options);

/// Returns uninitialized rows [rows, width], a view of a matrix with align_width() columns.
at::Tensor allocate_aligned_rows(int64_t rows, int64_t width, const at::TensorOptions& options);

/// Returns matrix [rows, width] with zeros up to align_width() columns: a new matrix, or `matrix`
/// itself if its rows are aligned. Records gradients.
at::Tensor pad_to_aligned_width(const at::Tensor& matrix);

}  // namespace vlmtrain::nn
