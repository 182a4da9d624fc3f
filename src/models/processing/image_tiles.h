#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "vlmtrain/models/media_preview.h"

namespace vlmtrain::models {

/// Writes the cells of `image` [3, rows · tile, columns · tile], row by row, to `cells` [rows · columns, 3, tile,
/// tile].
void split_tiles(const at::Tensor& image, int64_t tile, const at::Tensor& cells);

/// The same cells side by side again.
MediaPreview make_tiled_preview(const at::Tensor& cells, int64_t rows, int64_t columns);

/// A tile [3, height, width] that is the whole picture once more.
MediaPreview make_overview_preview(const at::Tensor& tile);

}  // namespace vlmtrain::models
