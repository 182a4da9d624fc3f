#include "models/nanovlm/image_processor.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>

#include "models/processing/cut_tiles.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/image/resize.h"

namespace vlmtrain::models::nanovlm {

namespace {

using image::Filter;
using image::ImageSize;

std::string repeat(std::string_view text, int64_t times) {
  std::string result;
  for (int64_t i = 0; i < times; ++i) result += text;
  return result;
}

int64_t ceil_tiles(double side, int64_t tile) {
  return static_cast<int64_t>(std::ceil(side / static_cast<double>(tile)));
}

/// The whole picture has the one cell's place where there is a token for it.
bool has_cell_tokens(const Config& config, TileGrid grid) {
  return config.max_image_size && !(config.has_global_image() && grid.cells() == 1);
}

}  // namespace

ImageProcessor::ImageProcessor(const Config& config, std::optional<int64_t> max_pixels)
    : tile_(config.vision.image_size),
      max_size_(config.max_image_size),
      resize_to_max_side_(config.resize_to_max_side),
      has_global_image_(config.has_global_image()),
      max_pixels_(max_pixels) {
  if (max_pixels && *max_pixels < tile_ * tile_) {
    throw usage_error("data.image_max_pixels is {}, but one tile of this model has {} pixels; raise it to that or more",
                      *max_pixels, tile_ * tile_);
  }
}

/// DynamicResize._get_new_hw, in its order of operations: in float64 a rounding may add a tile.
ImageSize ImageProcessor::resize_longest_side(ImageSize size, int64_t longest) const {
  const int64_t longer = std::max(size.height, size.width), shorter = std::min(size.height, size.width);
  const int64_t tiled_longer = ceil_tiles(static_cast<double>(longer), tile_) * tile_;
  const int64_t new_longer = resize_to_max_side_ ? longest : std::min(longest, tiled_longer);
  const double scale = static_cast<double>(new_longer) / static_cast<double>(longer);
  const int64_t new_shorter = std::max<int64_t>(ceil_tiles(static_cast<double>(shorter) * scale, tile_), 1) * tile_;
  if (size.width >= size.height) return {new_shorter, new_longer};
  return {new_longer, new_shorter};
}

ImageSize ImageProcessor::compute_resized_size(ImageSize size, std::optional<int64_t> max_pixels) const {
  if (!max_size_) return {tile_, tile_};
  constexpr int64_t kAny = std::numeric_limits<int64_t>::max();
  const int64_t pixel_limit = std::min(max_pixels_.value_or(kAny), max_pixels.value_or(kAny));
  int64_t longest = *max_size_;
  ImageSize resized_size = resize_longest_side(size, longest);
  while (resized_size.height * resized_size.width > pixel_limit) {
    VLMTRAIN_CHECK(longest > tile_, "one tile is within the limit");
    longest -= tile_;
    resized_size = resize_longest_side(size, longest);
  }
  return resized_size;
}

TileGrid ImageProcessor::compute_grid(ImageSize size, std::optional<int64_t> max_pixels) const {
  const ImageSize resized_size = compute_resized_size(size, max_pixels);
  TileGrid grid{resized_size.height / tile_, resized_size.width / tile_};
  grid.has_global_image = has_global_image_ && grid.cells() > 1;
  return grid;
}

at::Tensor ImageProcessor::process(const at::Tensor& image, std::optional<int64_t> max_pixels) const {
  VLMTRAIN_CHECK(image.scalar_type() == at::kByte && image.dim() == 3 && image.size(0) == 3,
                 "a picture to cut is uint8 [3, height, width]");
  const ImageSize size{image.size(1), image.size(2)};
  const ImageSize resized_size = compute_resized_size(size, max_pixels);
  const TileGrid grid = compute_grid(size, max_pixels);
  const at::Tensor pixels = image::resize_pillow(image, resized_size.height, resized_size.width,
                                                 max_size_ ? Filter::kBicubic : Filter::kBilinear);
  at::Tensor tiles = at::empty({grid.tiles(), 3, tile_, tile_}, at::kByte);
  split_tiles(pixels, tile_, tiles.narrow(0, grid.tiles() - grid.cells(), grid.cells()));
  if (grid.has_global_image) {
    tiles.select(0, 0).copy_(image::resize_float(pixels, tile_, tile_, Filter::kBilinear));
  }
  return tiles;
}

std::string format_image_text(const Config& config, TileGrid grid) {
  const std::string tile = repeat(config.extra_token("image_token"), config.image_tokens_per_tile());
  if (!config.max_image_size) return tile;
  std::string text;
  if (config.has_global_image()) text += config.extra_token("global_image_token") + tile;
  if (!has_cell_tokens(config, grid)) return text;
  for (int64_t row = 1; row <= grid.rows; ++row) {
    for (int64_t column = 1; column <= grid.columns; ++column) {
      text += config.extra_token(fmt::format("r{}c{}", row, column)) + tile;
    }
  }
  return text;
}

int64_t count_image_text(const Config& config, TileGrid grid) {
  const bool has_markers = config.max_image_size.has_value();
  return grid.tiles() * (config.image_tokens_per_tile() + (has_markers ? 1 : 0));
}

}  // namespace vlmtrain::models::nanovlm
