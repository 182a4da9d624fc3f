#include "vlmtrain/data/shape.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/number_words.h"

namespace vlmtrain::data {

SampleShape shape_of(const Sample& sample) {
  SampleShape shape{.tokens = sample.tokens(),
                    .label_tokens = sample.label_tokens(),
                    .image_tokens = std::ssize(sample.image_token_positions),
                    .images = sample.images,
                    .videos = sample.videos,
                    .video_frames = sample.video_frames};
  if (sample.tiles.defined()) {
    shape.tiles = sample.tiles.size(0);
    shape.tile_height = sample.tiles.size(2);
    shape.tile_width = sample.tiles.size(3);
    shape.grids = sample.grids;
  }
  return shape;
}

std::string media_words(const SampleShape& shape) {
  const int64_t pictures = shape.images - shape.videos;
  std::string text;
  if (pictures > 0) text = counted(pictures, "image");
  if (shape.videos > 0) {
    text += fmt::format("{}{} of {}", text.empty() ? "" : " and ", counted(shape.videos, "video"),
                        counted(shape.video_frames, "frame"));
  }
  return text.empty() ? "no image" : text;
}

SampleShape with_share_of_pixels(SampleShape shape, double share) {
  if (shape.tiles == 0) return shape;
  const auto part = [share](int64_t count) {
    return std::max<int64_t>(std::llround(static_cast<double>(count) * share), 1);
  };
  const int64_t text = shape.tokens - shape.image_tokens;
  if (shape.grids.empty()) {
    const int64_t tokens_per_tile = shape.image_tokens / shape.tiles;
    shape.tiles = part(shape.tiles);
    shape.image_tokens = shape.tiles * tokens_per_tile;
  } else {
    const int64_t tiles_per_token = shape.tiles / shape.image_tokens;
    const int64_t side = std::llround(std::sqrt(static_cast<double>(tiles_per_token)));
    shape.tiles = 0;
    for (TileGrid& grid : shape.grids) {
      grid.rows = part(grid.rows / side) * side;
      shape.tiles += grid.tiles();
    }
    shape.image_tokens = shape.tiles / tiles_per_token;
  }
  shape.tokens = shape.image_tokens + text;
  return shape;
}

Sample sample_of(const SampleShape& shape) {
  VLMTRAIN_CHECK(shape.image_tokens + shape.label_tokens <= shape.tokens && shape.label_tokens < shape.tokens,
                 "{} image tokens and {} label tokens in {} tokens", shape.image_tokens, shape.label_tokens,
                 shape.tokens);
  Sample sample;
  sample.token_ids.assign(static_cast<size_t>(shape.tokens), 0);
  sample.is_label.assign(static_cast<size_t>(shape.tokens), 0);
  std::fill(sample.is_label.end() - shape.label_tokens, sample.is_label.end(), char{1});
  sample.image_token_positions.resize(static_cast<size_t>(shape.image_tokens));
  std::iota(sample.image_token_positions.begin(), sample.image_token_positions.end(), int64_t{0});
  sample.images = shape.images;
  sample.videos = shape.videos;
  sample.video_frames = shape.video_frames;
  sample.grids = shape.grids;
  if (!shape.grids.empty()) sample.position_ids.assign(static_cast<size_t>(kPositionAxes * shape.tokens), 0);
  if (shape.tiles > 0) {
    sample.tiles = at::empty({shape.tiles, 3, shape.tile_height, shape.tile_width},
                             at::TensorOptions(at::kByte).device(at::kMeta));
  }
  return sample;
}

}  // namespace vlmtrain::data
