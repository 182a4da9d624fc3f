#include "models/media/media_reader.h"

#include "vlmtrain/models/media_preview.h"

namespace vlmtrain::models {

namespace {

/// Returns a preview of each row of `rows` [rows, 3, height, width].
std::vector<MediaPreview> preview_rows(const at::Tensor& rows) {
  std::vector<MediaPreview> previews;
  previews.reserve(static_cast<size_t>(rows.size(0)));
  for (int64_t row = 0; row < rows.size(0); ++row) {
    previews.push_back({.pixels = rows.select(0, row), .tile_height = rows.size(2), .tile_width = rows.size(3)});
  }
  return previews;
}

}  // namespace

std::vector<MediaPreview> ImageReader::preview(const at::Tensor& rows, const MediaLayout& /*layout*/,
                                               image::ImageSize /*size*/, std::optional<int64_t> /*max_pixels*/) const {
  return preview_rows(rows);
}

std::vector<MediaPreview> VideoReader::preview(const at::Tensor& rows, const MediaLayout& /*layout*/) const {
  std::vector<MediaPreview> previews = preview_rows(rows);
  for (size_t i = 0; i < previews.size(); ++i) previews[i].frame_index = static_cast<int64_t>(i);
  return previews;
}

void split_tiles(const at::Tensor& image, int64_t tile_size, const at::Tensor& cells) {
  const int64_t rows = image.size(1) / tile_size, columns = image.size(2) / tile_size;
  // [3, row, y, column, x] → [row, column, 3, y, x]
  cells.view({rows, columns, 3, tile_size, tile_size})
      .copy_(image.view({3, rows, tile_size, columns, tile_size}).permute({1, 3, 0, 2, 4}));
}

MediaPreview make_tiled_preview(const at::Tensor& cells, int64_t rows, int64_t columns) {
  const int64_t height = cells.size(2), width = cells.size(3);
  const at::Tensor tiled_image = cells.view({rows, columns, 3, height, width})
                                     .permute({2, 0, 3, 1, 4})
                                     .reshape({3, rows * height, columns * width});
  return {.pixels = tiled_image, .tile_height = height, .tile_width = width};
}

MediaPreview make_overview_preview(const at::Tensor& tile) {
  return {.pixels = tile, .tile_height = tile.size(1), .tile_width = tile.size(2), .is_overview = true};
}

std::vector<MediaPreview> preview_cells_and_overview(const at::Tensor& tiles, int64_t rows, int64_t columns) {
  const int64_t num_cells = rows * columns;
  return {make_tiled_preview(tiles.narrow(0, 0, num_cells), rows, columns),
          make_overview_preview(tiles.select(0, num_cells))};
}

}  // namespace vlmtrain::models
