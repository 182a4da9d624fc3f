#include "models/idefics3/image_processor.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <limits>
#include <set>
#include <string_view>

#include "models/checkpoints/size_limits.h"
#include "models/processing/cut_tiles.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/io/json_text.h"

namespace vlmtrain::models::idefics3 {
namespace {

using image::ImageSize;
using nlohmann::json;

/// transformers' MAX_IMAGE_SIZE: no side grows beyond it, whatever size.longest_edge says.
constexpr int64_t kLongestSide = 4096;

/// Python's int(): towards zero.
int64_t truncate(double value) {
  return static_cast<int64_t>(value);
}

double aspect_ratio(ImageSize size) {
  return static_cast<double>(size.width) / static_cast<double>(size.height);
}

/// _resize_output_size_rescale_to_max_len: the longer side becomes `longest`, the other follows and is made even.
ImageSize with_longest_edge(ImageSize size, int64_t longest) {
  const auto follow = [](double side) {
    const int64_t whole = truncate(side);
    return std::max<int64_t>(whole + whole % 2, 1);
  };
  const double ratio = aspect_ratio(size);
  if (size.width >= size.height) return {follow(static_cast<double>(longest) / ratio), longest};
  return {longest, follow(static_cast<double>(longest) * ratio)};
}

/// _resize_output_size_scale_below_upper_bound.
ImageSize below_longest_side(ImageSize size) {
  if (std::max(size.height, size.width) <= kLongestSide) return size;
  const double ratio = aspect_ratio(size);
  if (size.width >= size.height) return {std::max<int64_t>(truncate(kLongestSide / ratio), 1), kLongestSide};
  return {kLongestSide, std::max<int64_t>(truncate(kLongestSide * ratio), 1)};
}

int64_t up_to_multiple(int64_t value, int64_t unit) {
  return (value + unit - 1) / unit * unit;
}

/// resize_for_vision_encoder: whole tiles, the shorter side following the longer one's growth first.
ImageSize in_whole_tiles(ImageSize size, int64_t tile) {
  const double ratio = aspect_ratio(size);
  if (size.width >= size.height) {
    const int64_t width = up_to_multiple(size.width, tile);
    return {up_to_multiple(truncate(static_cast<double>(width) / ratio), tile), width};
  }
  const int64_t height = up_to_multiple(size.height, tile);
  return {height, up_to_multiple(truncate(static_cast<double>(height) * ratio), tile)};
}

/// The number under longest_edge of `found`, which is what `key` says, and all of that.
int64_t longest_edge(const PreprocessorConfig& config, const json* found, std::string_view key, int64_t fallback) {
  if (found == nullptr) return fallback;
  const bool understood = found->is_object() && found->size() == 1 && found->contains("longest_edge") &&
                          found->at("longest_edge").is_number_integer() && found->at("longest_edge") > 0 &&
                          found->at("longest_edge") <= kLargestSide;
  if (!understood) {
    throw data_error("{}: {} is {}; only {{\"longest_edge\": PIXELS}} is supported", config.name(), key,
                     io::json_excerpt(*found));
  }
  return found->at("longest_edge").get<int64_t>();
}

// The defaults are those of transformers' classes.
constexpr int64_t kUsualTile = 364;
constexpr int64_t kUsualLongestEdge = 4 * kUsualTile;

int64_t tile_size(const PreprocessorConfig& config) {
  return longest_edge(config, config.find("max_image_size"), "max_image_size", kUsualTile);
}

image::Normalization normalization(const PreprocessorConfig& config) {
  constexpr double kHalf = 0.5;
  return config.normalization({kHalf, kHalf, kHalf}, {kHalf, kHalf, kHalf});
}

/// Refuses what is followed neither for pictures nor, with `more`, for videos.
void check_keys(const PreprocessorConfig& config, const std::set<std::string_view>& more = {}) {
  std::set<std::string_view> known{
      // read here
      "do_image_splitting", "size", "max_image_size", "resample", "image_mean", "image_std", "rescale_factor",
      "image_processor_type", "feature_extractor_type", "do_resize", "do_rescale", "do_normalize", "do_convert_rgb",
      // of no effect on a still picture's pixels: tiles are of one size, so there is nothing to pad
      "do_pad", "processor_class", "video_sampling", "return_tensors", "data_format", "input_data_format", "device",
      "disable_grouping", "default_to_square", "_valid_processor_keys", "_processor_class", "image_seq_len",
      "image_seq_length", "pad_size", "crop_size", "return_row_col_info", "model_input_names"};
  known.insert(more.begin(), more.end());
  config.require_no_others(known);
  for (const std::string_view key : {"do_resize", "do_rescale", "do_normalize", "do_convert_rgb"})
    config.require_true(key);
}

}  // namespace

ImageProcessorSettings read_image_processor_settings(const PreprocessorConfig& config) {
  config.type("Idefics3ImageProcessor", {"Idefics3ImageProcessor", "SmolVLMImageProcessor"});
  check_keys(config);
  return {.do_image_splitting = config.value("do_image_splitting", true),
          .longest_edge = longest_edge(config, config.find("size"), "size", kUsualLongestEdge),
          .tile_size = tile_size(config),
          .filter = config.filter(1),
          .normalization = normalization(config)};
}

ImageProcessorSettings read_frame_settings(const PreprocessorConfig& config) {
  check_keys(config,
             {"video_processor_type", "num_frames", "fps", "do_sample_frames", "return_metadata", "video_metadata"});
  const json* edge = config.find("size");
  const json* const sampling = config.find("video_sampling");
  if (edge == nullptr && sampling != nullptr && sampling->contains("video_size")) edge = &sampling->at("video_size");
  return {.do_image_splitting = false,
          .longest_edge = longest_edge(config, edge, "size", kUsualLongestEdge),
          .tile_size = tile_size(config),
          .filter = config.filter(1),
          .normalization = normalization(config)};
}

ImageProcessor::ImageProcessor(const ImageProcessorSettings& settings, std::optional<int64_t> max_pixels)
    : settings_(settings), max_pixels_(max_pixels) {
  const int64_t tile_pixels = settings.tile_size * settings.tile_size;
  if (max_pixels && *max_pixels < tile_pixels) {
    throw usage_error("data.image_max_pixels is {}, but one tile of this model has {} pixels; raise it to that or more",
                      *max_pixels, tile_pixels);
  }
}

ImageProcessor::Sizes ImageProcessor::sizes_at(ImageSize size, int64_t longest_edge) const {
  const ImageSize resized = below_longest_side(with_longest_edge(size, longest_edge));
  return {resized, in_whole_tiles(resized, settings_.tile_size)};
}

ImageProcessor::Sizes ImageProcessor::sizes_for(ImageSize size, std::optional<int64_t> max_pixels) const {
  Sizes sizes = sizes_at(size, settings_.longest_edge);
  if (!settings_.do_image_splitting) return sizes;
  constexpr int64_t kAny = std::numeric_limits<int64_t>::max();
  const int64_t most = std::min(max_pixels_.value_or(kAny), max_pixels.value_or(kAny));
  int64_t tiles_along = std::max(sizes.tile_wise.height, sizes.tile_wise.width) / settings_.tile_size;
  while (sizes.tile_wise.height * sizes.tile_wise.width > most) {
    VLMTRAIN_CHECK(tiles_along > 1, "one tile is within the limit");
    --tiles_along;
    sizes = sizes_at(size, tiles_along * settings_.tile_size);
  }
  return sizes;
}

TileGrid ImageProcessor::grid_for(ImageSize size, std::optional<int64_t> max_pixels) const {
  if (!settings_.do_image_splitting) return {};
  const ImageSize whole = sizes_for(size, max_pixels).tile_wise;
  const TileGrid grid{whole.height / settings_.tile_size, whole.width / settings_.tile_size};
  return grid == TileGrid{1, 1} ? TileGrid{} : grid;
}

TiledImage ImageProcessor::process(const at::Tensor& image, std::optional<int64_t> max_pixels) const {
  VLMTRAIN_CHECK(image.scalar_type() == at::kByte && image.dim() == 3 && image.size(0) == 3,
                 "a picture to cut is uint8 [3, height, width]");
  const ImageSize size{image.size(1), image.size(2)};
  const TileGrid grid = grid_for(size, max_pixels);
  const Sizes sizes = sizes_for(size, max_pixels);
  const int64_t tile = settings_.tile_size;
  const auto resize = [this](const at::Tensor& from, ImageSize to) {
    return image::resize(from, to.height, to.width, settings_.filter);
  };

  at::Tensor resized = resize(image, sizes.resized);
  if (settings_.do_image_splitting) resized = resize(resized, sizes.tile_wise);
  // Without a grid the picture has a tile's size by now if it was to be split, and is squashed to it if not.
  const at::Tensor whole = resize(resized, {tile, tile});
  if (!grid.is_split()) return {whole.unsqueeze(0), grid};
  at::Tensor tiles = at::empty({grid.tiles(), 3, tile, tile}, at::kByte);
  cut_tiles(resized, tile, tiles.narrow(0, 0, grid.tiles() - 1));
  tiles.select(0, grid.tiles() - 1).copy_(whole);
  return {tiles, grid};
}

at::Tensor ImageProcessor::normalize(const at::Tensor& tiles) const {
  return image::normalize_pixels(tiles, settings_.normalization);
}

}  // namespace vlmtrain::models::idefics3
