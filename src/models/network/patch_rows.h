#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace vlmtrain::models {

/// What a convolution whose stride is its kernel reads, a row a patch: [tiles, 3, height, width] → [tiles · patches,
/// 3 · patch²], line by line. Pixels beyond the last whole patch are dropped, as a convolution without padding does.
at::Tensor patch_rows(const at::Tensor& pixels, int64_t patch);

}  // namespace vlmtrain::models
