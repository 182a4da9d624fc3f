#pragma once

#include <cstdint>
#include <vector>

#include "vlmtrain/base/tensor_fwd.h"

namespace vlmtrain::models {

struct MediaPreview;  // media_preview.h

/// Splits `image` [3, rows · tile_size, columns · tile_size] into square tiles, and copies
/// them row by row to `cells` [rows · columns, 3, tile_size, tile_size].
void split_tiles(const at::Tensor& image, int64_t tile_size, const at::Tensor& cells);

/// Returns a preview that joins the tiles of split_tiles(), `cells` [rows · columns, 3, height,
/// width], to one image.
MediaPreview make_tiled_preview(const at::Tensor& cells, int64_t rows, int64_t columns);

/// Returns a preview of the downscaled full image [3, height, width].
MediaPreview make_overview_preview(const at::Tensor& tile);

/// Returns previews of `tiles` [rows · columns + 1, 3, height, width]: the cells of an image, then
/// its downscaled full image.
std::vector<MediaPreview> preview_cells_and_overview(const at::Tensor& tiles, int64_t rows, int64_t columns);

}  // namespace vlmtrain::models
