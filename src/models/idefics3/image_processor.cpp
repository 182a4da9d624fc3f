#include "models/idefics3/image_processor.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <set>
#include <string_view>

#include "vlmtrain/base/error.h"

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

/// Writes the cells of `image` [3, rows * tile, columns * tile] to `cells` [rows * columns, 3, tile, tile].
void cut(const at::Tensor& image, TileGrid grid, int64_t tile, const at::Tensor& cells) {
  cells.view({grid.rows, grid.columns, 3, tile, tile})
      .copy_(image.view({3, grid.rows, tile, grid.columns, tile}).permute({1, 3, 0, 2, 4}));
}

/// Values of a preprocessor_config.json, with errors that name the key.
class ConfigReader {
 public:
  ConfigReader(const json& config, const std::string& name) : config_(config), name_(name) {
    if (!config.is_object()) throw data_error("{}: not a JSON object; take the checkpoint's own file", name);
  }

  template <class T>
  T value(std::string_view key, T fallback) const {
    const json* found = find(key);
    if (found == nullptr) return fallback;
    try {
      return found->get<T>();
    } catch (const json::exception&) {
      throw data_error("{}: {} is {}, which is not of its type; take the checkpoint's own file", name_, key,
                       found->dump());
    }
  }

  /// The number under `key`.longest_edge, which must be all that `key` says.
  int64_t longest_edge(std::string_view key, int64_t fallback) const {
    const json* found = find(key);
    if (found == nullptr) return fallback;
    const bool understood = found->is_object() && found->size() == 1 && found->contains("longest_edge") &&
                            found->at("longest_edge").is_number_integer() && found->at("longest_edge") > 0;
    if (!understood) {
      throw data_error("{}: {} is {}; only {{\"longest_edge\": PIXELS}} is supported", name_, key, found->dump());
    }
    return found->at("longest_edge").get<int64_t>();
  }

  void require_true(std::string_view key) const {
    if (!value<bool>(key, true))
      throw data_error("{}: {} is false, which is not supported; set it to true", name_, key);
  }

  /// What is neither read nor known to leave pixels alone must be off.
  void require_no_others(const std::set<std::string_view>& known) const {
    for (const auto& [key, setting] : config_.items()) {
      if (known.contains(key) || setting.is_null() || setting == false) continue;
      throw data_error("{}: {} is {}, a setting that is not supported; remove it if the pictures do not depend on it",
                       name_, key, setting.dump());
    }
  }

 private:
  const json* find(std::string_view key) const {
    const auto found = config_.find(std::string(key));
    return found == config_.end() || found->is_null() ? nullptr : &*found;
  }

  const json& config_;
  const std::string& name_;
};

/// The numbers are Pillow's Resampling.
image::Filter filter_of(int64_t resample, const std::string& name) {
  switch (resample) {
    case 1:
      return image::Filter::kLanczos;
    case 2:
      return image::Filter::kBilinear;
    case 3:
      return image::Filter::kBicubic;
    default:
      throw data_error("{}: resample is {}; supported are 1 (Lanczos), 2 (bilinear) and 3 (bicubic)", name, resample);
  }
}

void require_known_type(const ConfigReader& reader, const std::string& name) {
  for (const std::string_view key : {"image_processor_type", "feature_extractor_type"}) {
    auto type = reader.value<std::string>(key, "Idefics3ImageProcessor");
    if (type.ends_with("Fast")) type.resize(type.size() - 4);
    if (type == "Idefics3ImageProcessor" || type == "SmolVLMImageProcessor") continue;
    throw data_error(
        "{}: {} is {}; an Idefics3 or SmolVLM checkpoint has Idefics3ImageProcessor or SmolVLMImageProcessor", name,
        key, type);
  }
}

}  // namespace

ImageProcessorSettings read_image_processor_settings(const json& config, const std::string& name) {
  const ConfigReader reader(config, name);
  require_known_type(reader, name);
  reader.require_no_others(
      {// read here
       "do_image_splitting", "size", "max_image_size", "resample", "image_mean", "image_std", "rescale_factor",
       "image_processor_type", "feature_extractor_type", "do_resize", "do_rescale", "do_normalize", "do_convert_rgb",
       // of no effect on a still picture's pixels: tiles are of one size, so there is nothing to pad
       "do_pad", "processor_class", "video_sampling", "return_row_col_info", "return_tensors", "data_format",
       "input_data_format", "device", "disable_grouping", "default_to_square", "_valid_processor_keys",
       "_processor_class", "image_seq_len", "image_seq_length", "pad_size", "crop_size", "model_input_names"});
  for (const std::string_view key : {"do_resize", "do_rescale", "do_normalize", "do_convert_rgb"})
    reader.require_true(key);

  // The defaults are those of transformers' class.
  using Triple = std::array<double, 3>;
  constexpr double kHalf = 0.5;
  ImageProcessorSettings settings{
      .do_image_splitting = reader.value("do_image_splitting", true),
      .longest_edge = reader.longest_edge("size", 1456),
      .tile_size = reader.longest_edge("max_image_size", 364),
      .filter = filter_of(reader.value<int64_t>("resample", 1), name),
      .normalization = {.mean = reader.value("image_mean", Triple{kHalf, kHalf, kHalf}),
                        .std = reader.value("image_std", Triple{kHalf, kHalf, kHalf}),
                        .rescale_factor = reader.value("rescale_factor", 1.0 / 255.0)},
  };
  const Triple& std = settings.normalization.std;
  if (std::find(std.begin(), std.end(), 0.0) != std.end() || settings.normalization.rescale_factor <= 0.0) {
    throw data_error("{}: image_std and rescale_factor divide, so they cannot be 0; take the checkpoint's own file",
                     name);
  }
  return settings;
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

ImageProcessor::Sizes ImageProcessor::sizes_for(ImageSize size) const {
  Sizes sizes = sizes_at(size, settings_.longest_edge);
  if (!max_pixels_ || !settings_.do_image_splitting) return sizes;
  int64_t tiles_along = std::max(sizes.tile_wise.height, sizes.tile_wise.width) / settings_.tile_size;
  while (sizes.tile_wise.height * sizes.tile_wise.width > *max_pixels_) {
    VLMTRAIN_CHECK(tiles_along > 1, "one tile is within the limit");
    --tiles_along;
    sizes = sizes_at(size, tiles_along * settings_.tile_size);
  }
  return sizes;
}

TileGrid ImageProcessor::grid_for(ImageSize size) const {
  if (!settings_.do_image_splitting) return {};
  const ImageSize whole = sizes_for(size).tile_wise;
  const TileGrid grid{whole.height / settings_.tile_size, whole.width / settings_.tile_size};
  return grid == TileGrid{1, 1} ? TileGrid{} : grid;
}

TiledImage ImageProcessor::process(const at::Tensor& image) const {
  VLMTRAIN_CHECK(image.scalar_type() == at::kByte && image.dim() == 3 && image.size(0) == 3,
                 "a picture to cut is uint8 [3, height, width]");
  const ImageSize size{image.size(1), image.size(2)};
  const TileGrid grid = grid_for(size);
  const Sizes sizes = sizes_for(size);
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
  cut(resized, grid, tile, tiles.narrow(0, 0, grid.tiles() - 1));
  tiles.select(0, grid.tiles() - 1).copy_(whole);
  return {tiles, grid};
}

at::Tensor ImageProcessor::normalize(const at::Tensor& tiles) const {
  return image::normalize_pixels(tiles, settings_.normalization);
}

}  // namespace vlmtrain::models::idefics3
