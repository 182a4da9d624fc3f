#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace vlmtrain::models {

/// Writes the cells of `image` [3, rows · tile, columns · tile], row by row, to `cells` [rows · columns, 3, tile,
/// tile].
void cut_tiles(const at::Tensor& image, int64_t tile, const at::Tensor& cells);

}  // namespace vlmtrain::models
