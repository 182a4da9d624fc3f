#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace vlmtrain::models {

/// Gathers each scale × scale square of patches into one row, its patches line by line: [tiles · side², features] →
/// [tiles · (side / scale)², features · scale²].
at::Tensor pixel_shuffle(const at::Tensor& patches, int64_t side, int64_t scale);

}  // namespace vlmtrain::models
