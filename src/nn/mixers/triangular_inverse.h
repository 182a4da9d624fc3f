#pragma once

#include <ATen/core/Tensor.h>

namespace vlmtrain::nn {

/// Returns the inverse of I + L for strictly lower triangular matrices L [n, kChunkRows,
/// kChunkRows]. Reads only the entries below the diagonals. Records no gradients.
///
/// On CUDA the inverse of a matrix is assembled from those of its diagonal blocks, whose size
/// doubles at each of log2(kChunkRows) levels: X21 = −X22 · L21 · X11. The equivalent product (I −
/// L)(I + L²)(I + L⁴)… would lose all digits for similar keys. The CPU substitutes row
/// by row.
at::Tensor invert_unit_lower(const at::Tensor& strictly_lower);

/// Does the same by blocks on any device.
at::Tensor invert_unit_lower_by_blocks(const at::Tensor& strictly_lower);

}  // namespace vlmtrain::nn
