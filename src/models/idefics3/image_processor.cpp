#include "models/idefics3/image_processor.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <limits>
#include <set>
#include <string_view>

#include "models/checkpoints/config_checks.h"
#include "models/media/medium.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/io/json.h"

namespace vlmtrain::models::idefics3 {
namespace {

using image::ImageSize;
using nlohmann::json;

/// transformers' MAX_IMAGE_SIZE: no side exceeds it, whatever size.longest_edge is.
constexpr int64_t kMaxResizedSide = 4096;

/// Rounds toward zero, as Python's int().
int64_t truncate_to_int(double value) {
  return static_cast<int64_t>(value);
}

double compute_aspect_ratio(ImageSize size) {
  return static_cast<double>(size.width) / static_cast<double>(size.height);
}

/// _resize_output_size_rescale_to_max_len of transformers: the longer side becomes `longest_edge`,
/// the other one is scaled and made even.
ImageSize scale_longest_edge(ImageSize size, int64_t longest_edge) {
  const auto round_up_to_even = [](double side) {
    const int64_t truncated_side = truncate_to_int(side);
    return std::max<int64_t>(truncated_side + truncated_side % 2, 1);
  };
  const double aspect_ratio = compute_aspect_ratio(size);
  if (size.width >= size.height)
    return {round_up_to_even(static_cast<double>(longest_edge) / aspect_ratio), longest_edge};
  return {longest_edge, round_up_to_even(static_cast<double>(longest_edge) * aspect_ratio)};
}

/// _resize_output_size_scale_below_upper_bound of transformers.
ImageSize clamp_longest_side(ImageSize size) {
  if (std::max(size.height, size.width) <= kMaxResizedSide) return size;
  const double aspect_ratio = compute_aspect_ratio(size);
  if (size.width >= size.height)
    return {std::max<int64_t>(truncate_to_int(kMaxResizedSide / aspect_ratio), 1), kMaxResizedSide};
  return {kMaxResizedSide, std::max<int64_t>(truncate_to_int(kMaxResizedSide * aspect_ratio), 1)};
}

int64_t round_up_to_multiple(int64_t value, int64_t unit) {
  return (value + unit - 1) / unit * unit;
}

/// resize_for_vision_encoder of transformers: the longer side is rounded up to whole tiles first,
/// the shorter side is scaled with it and rounded up.
ImageSize round_up_to_tiles(ImageSize size, int64_t tile_size) {
  const double aspect_ratio = compute_aspect_ratio(size);
  if (size.width >= size.height) {
    const int64_t width = round_up_to_multiple(size.width, tile_size);
    return {round_up_to_multiple(truncate_to_int(static_cast<double>(width) / aspect_ratio), tile_size), width};
  }
  const int64_t height = round_up_to_multiple(size.height, tile_size);
  return {height, round_up_to_multiple(truncate_to_int(static_cast<double>(height) * aspect_ratio), tile_size)};
}

/// Returns longest_edge of `value`, the value of `key` in the file; `fallback` if `value` is null.
/// Throws UserError if `value` is not an object with this entry alone.
int64_t read_longest_edge(const PreprocessorConfig& config, const json* value, std::string_view key, int64_t fallback) {
  if (value == nullptr) return fallback;
  const bool is_valid = value->is_object() && value->size() == 1 && value->contains("longest_edge") &&
                        value->at("longest_edge").is_number_integer() && value->at("longest_edge") > 0 &&
                        value->at("longest_edge") <= kMaxImageSide;
  if (!is_valid) {
    throw data_error("{}: {} is {}; supported: {{\"longest_edge\": PIXELS}}", config.name(), key,
                     io::make_json_excerpt(*value));
  }
  return value->at("longest_edge").get<int64_t>();
}

// Defaults of Idefics3ImageProcessor and SmolVLMImageProcessor, in pixels.
constexpr int64_t kDefaultTileSize = 364;
constexpr int64_t kDefaultLongestEdge = 4 * kDefaultTileSize;

int64_t read_tile_size(const PreprocessorConfig& config) {
  return read_longest_edge(config, config.find("max_image_size"), "max_image_size", kDefaultTileSize);
}

image::Normalization read_normalization(const PreprocessorConfig& config) {
  constexpr double kDefaultMeanAndStd = 0.5;
  return config.get_normalization({kDefaultMeanAndStd, kDefaultMeanAndStd, kDefaultMeanAndStd},
                                  {kDefaultMeanAndStd, kDefaultMeanAndStd, kDefaultMeanAndStd});
}

/// Throws UserError for unsupported settings. `extra_keys`: supported keys of videos.
void check_config(const PreprocessorConfig& config, const std::set<std::string_view>& extra_keys = {}) {
  std::set<std::string_view> recognized_keys{
      // supported
      "do_image_splitting", "size", "max_image_size", "resample", "image_mean", "image_std", "rescale_factor",
      "image_processor_type", "feature_extractor_type", "do_resize", "do_rescale", "do_normalize", "do_convert_rgb",
      // without effect on an image's pixels: all tiles have one size, so nothing is padded
      "do_pad", "processor_class", "video_sampling", "return_tensors", "data_format", "input_data_format", "device",
      "disable_grouping", "default_to_square", "_valid_processor_keys", "_processor_class", "image_seq_len",
      "image_seq_length", "pad_size", "crop_size", "return_row_col_info", "model_input_names"};
  recognized_keys.insert(extra_keys.begin(), extra_keys.end());
  config.reject_other_keys(recognized_keys);
  for (const std::string_view key : {"do_resize", "do_rescale", "do_normalize", "do_convert_rgb"})
    config.check_key_is_true(key);
}

}  // namespace

ImageProcessorSettings read_image_processor_settings(const PreprocessorConfig& config) {
  config.get_processor_type("Idefics3ImageProcessor", {"Idefics3ImageProcessor", "SmolVLMImageProcessor"});
  check_config(config);
  return {.do_image_splitting = config.value("do_image_splitting", true),
          .longest_edge = read_longest_edge(config, config.find("size"), "size", kDefaultLongestEdge),
          .tile_size = read_tile_size(config),
          .filter = config.get_resample_filter(1),
          .normalization = read_normalization(config)};
}

ImageProcessorSettings load_image_processor_settings(const std::filesystem::path& folder) {
  const auto config = PreprocessorConfig::find_for_images(folder);
  if (config) return read_image_processor_settings(*config);
  throw make_missing_image_config_error(folder);
}

ImageProcessorSettings read_frame_settings(const PreprocessorConfig& config) {
  check_config(config,
               {"video_processor_type", "num_frames", "fps", "do_sample_frames", "return_metadata", "video_metadata"});
  const json* size_json = config.find("size");
  const json* const sampling = config.find("video_sampling");
  if (size_json == nullptr && sampling != nullptr && sampling->contains("video_size"))
    size_json = &sampling->at("video_size");
  return {.do_image_splitting = false,
          .longest_edge = read_longest_edge(config, size_json, "size", kDefaultLongestEdge),
          .tile_size = read_tile_size(config),
          .filter = config.get_resample_filter(1),
          .normalization = read_normalization(config)};
}

ImageProcessor::ImageProcessor(const ImageProcessorSettings& settings, std::optional<int64_t> max_pixels)
    : settings_(settings), max_pixels_(max_pixels) {
  const int64_t tile_pixels = settings.tile_size * settings.tile_size;
  if (max_pixels && *max_pixels < tile_pixels) {
    throw usage_error("{} is {}, but one tile of this model has {} pixels; raise it to that or more",
                      keys::data::kImageMaxPixels, *max_pixels, tile_pixels);
  }
}

ImageProcessor::TilingSizes ImageProcessor::compute_tiling_sizes(ImageSize size, int64_t longest_edge) const {
  const ImageSize resized_size = clamp_longest_side(scale_longest_edge(size, longest_edge));
  return {resized_size, round_up_to_tiles(resized_size, settings_.tile_size)};
}

ImageProcessor::TilingSizes ImageProcessor::limit_tiling_sizes(ImageSize size,
                                                               std::optional<int64_t> max_pixels) const {
  TilingSizes sizes = compute_tiling_sizes(size, settings_.longest_edge);
  if (!settings_.do_image_splitting) return sizes;
  constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();
  const int64_t pixel_limit = std::min(max_pixels_.value_or(kNoLimit), max_pixels.value_or(kNoLimit));
  int64_t tiles_on_longer_side = std::max(sizes.tiled.height, sizes.tiled.width) / settings_.tile_size;
  // Removes tiles along the longer side until the limit is met; the other side follows.
  while (sizes.tiled.height * sizes.tiled.width > pixel_limit) {
    VLMTRAIN_CHECK(tiles_on_longer_side > 1, "one tile is within the limit");
    --tiles_on_longer_side;
    sizes = compute_tiling_sizes(size, tiles_on_longer_side * settings_.tile_size);
  }
  return sizes;
}

TileGrid ImageProcessor::compute_grid(ImageSize size, std::optional<int64_t> max_pixels) const {
  if (!settings_.do_image_splitting) return {};
  const ImageSize tiled_size = limit_tiling_sizes(size, max_pixels).tiled;
  const TileGrid grid{tiled_size.height / settings_.tile_size, tiled_size.width / settings_.tile_size};
  return grid == TileGrid{1, 1} ? TileGrid{} : grid;
}

at::Tensor ImageProcessor::process(const at::Tensor& image, std::optional<int64_t> max_pixels) const {
  VLMTRAIN_CHECK(image.scalar_type() == at::kByte && image.dim() == 3 && image.size(0) == 3,
                 "the image to split must be uint8 [3, height, width]");
  const ImageSize size{image.size(1), image.size(2)};
  const TileGrid grid = compute_grid(size, max_pixels);
  const TilingSizes sizes = limit_tiling_sizes(size, max_pixels);
  const int64_t tile_size = settings_.tile_size;
  const auto resize = [this](const at::Tensor& from, ImageSize to) {
    return image::resize_image(from, to.height, to.width, settings_.filter);
  };

  at::Tensor resized = resize(image, sizes.resized);
  if (settings_.do_image_splitting) resized = resize(resized, sizes.tiled);
  // The overview has the size of one tile, regardless of the aspect ratio. An image of one cell
  // already has that size.
  const at::Tensor overview = resize(resized, {tile_size, tile_size});
  if (!grid.is_split()) return overview.unsqueeze(0);
  at::Tensor tiles = at::empty({grid.num_tiles(), 3, tile_size, tile_size}, at::kByte);
  split_tiles(resized, tile_size, tiles.narrow(0, 0, grid.num_tiles() - 1));
  tiles.select(0, grid.num_tiles() - 1).copy_(overview);
  return tiles;
}

at::Tensor ImageProcessor::normalize(const at::Tensor& tiles) const {
  return image::normalize_pixels(tiles, settings_.normalization);
}

}  // namespace vlmtrain::models::idefics3
