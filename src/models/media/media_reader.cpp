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

}  // namespace vlmtrain::models
