#include "models/internvl/image_processor.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "models/checkpoints/config_checks.h"
#include "models/media/frame_sampling.h"
#include "models/media/image_tiles.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/io/json.h"

namespace vlmtrain::models::internvl {

namespace {

using image::ImageSize;
using nlohmann::json;

/// Maximum of min_patches and max_patches. Checkpoints have at most 12; 1,024 keeps the search over
/// all grids cheap.
constexpr int64_t kMaxGridCells = 1 << 10;

int64_t read_tile_side(const PreprocessorConfig& file) {
  const json* size = file.find("size");
  if (size == nullptr) return 384;  // transformers' default
  const auto has_valid_side = [&](const char* key) {
    return size->contains(key) && size->at(key).is_number_integer() && size->at(key) > 0 &&
           size->at(key) <= kMaxImageSide;
  };
  const bool is_valid = size->is_object() && has_valid_side("height") && has_valid_side("width") &&
                        size->at("height") == size->at("width");
  if (!is_valid) {
    throw data_error("{}: size is {}; supported is {{\"height\": PIXELS, \"width\": PIXELS}} with two equal numbers",
                     file.name(), io::make_json_excerpt(*size));
  }
  return size->at("height").get<int64_t>();
}

/// Returns the number of tiles with a side of `side` pixels that `pixels` suffice for.
int64_t compute_max_tiles(int64_t pixels, int64_t side) {
  return pixels / (side * side);
}

}  // namespace

const std::set<std::string_view>& get_tile_config_keys() {
  static const std::set<std::string_view> keys{
      // supported
      "size", "resample", "image_mean", "image_std", "rescale_factor", "do_resize", "do_rescale", "do_normalize",
      "do_convert_rgb",
      // without effect on pixels
      "processor_class", "return_tensors", "data_format", "input_data_format", "device", "disable_grouping",
      "default_to_square", "_valid_processor_keys", "_processor_class", "image_seq_length", "crop_size",
      "model_input_names", "pad_size"};
  return keys;
}

TileSettings read_tile_settings(const PreprocessorConfig& file, const VisionConfig& vision) {
  for (const std::string_view key : {"do_resize", "do_rescale", "do_normalize", "do_convert_rgb"}) {
    file.check_key_is_true(key);
  }
  const TileSettings settings{.side = read_tile_side(file),
                              .filter = file.get_resample_filter(3),
                              .normalization = file.get_normalization(kClipMean, kClipStd)};
  if (settings.side != vision.image_size) {
    throw data_error(
        "{} makes tiles of {} pixels (size), but config.json's vision tower needs {} (image_size); they must be equal",
        file.name(), settings.side, vision.image_size);
  }
  return settings;
}

ImageProcessorSettings read_image_settings(const std::filesystem::path& folder, const VisionConfig& vision) {
  const auto file = PreprocessorConfig::find_for_images(folder);
  if (!file) {
    throw data_error("{}: has neither preprocessor_config.json nor a section image_processor in processor_config.json",
                     folder.string());
  }
  file->get_processor_type("GotOcr2ImageProcessor", {"GotOcr2ImageProcessor"});
  std::set<std::string_view> supported_keys = get_tile_config_keys();
  supported_keys.insert({// read here
                         "min_patches", "max_patches", "image_processor_type", "feature_extractor_type",
                         // without effect
                         "crop_to_patches"});
  file->reject_other_keys(supported_keys);
  const ImageProcessorSettings settings{.tile = read_tile_settings(*file, vision),
                                        .min_cells = file->value<int64_t>("min_patches", 1),
                                        .max_cells = file->value<int64_t>("max_patches", 12)};
  check_size(settings.max_cells, "max_patches", kMaxGridCells, file->name());
  check_size(settings.min_cells, "min_patches", settings.max_cells, file->name());
  return settings;
}

ImageProcessor::ImageProcessor(const ImageProcessorSettings& settings, std::optional<int64_t> max_pixels)
    : settings_(settings) {
  if (!max_pixels) return;
  const int64_t max_cells = compute_max_tiles(*max_pixels, tile_settings().side);
  if (max_cells < 1) {
    throw usage_error("{} is {}, but one tile of this model has {} pixels; raise it to that or more",
                      keys::data::kImageMaxPixels, *max_pixels, tile_settings().side * tile_settings().side);
  }
  settings_.max_cells = std::min(settings_.max_cells, max_cells);
}

TileGrid ImageProcessor::compute_grid(ImageSize size, std::optional<int64_t> max_pixels) const {
  int64_t max_cells = settings_.max_cells;
  if (max_pixels) max_cells = std::clamp<int64_t>(compute_max_tiles(*max_pixels, tile_settings().side), 1, max_cells);
  const double ratio = static_cast<double>(size.width) / static_cast<double>(size.height);
  const auto image_area = static_cast<double>(size.width * size.height);
  const auto tile_area = static_cast<double>(tile_settings().side * tile_settings().side);
  TileGrid best_grid;
  double smallest_ratio_difference = std::numeric_limits<double>::infinity();
  // The order of the grids matters (by cells, then by columns): a later grid replaces an equally
  // close one only if the image has more than half of its pixels.
  for (int64_t cells = std::min(settings_.min_cells, max_cells); cells <= max_cells; ++cells) {
    for (int64_t columns = 1; columns <= cells; ++columns) {
      if (cells % columns != 0) continue;
      const TileGrid grid{.rows = cells / columns, .columns = columns};
      const double ratio_difference = std::abs(ratio - static_cast<double>(columns) / static_cast<double>(grid.rows));
      const bool is_filled = image_area > 0.5 * tile_area * static_cast<double>(cells);
      if (ratio_difference < smallest_ratio_difference || (ratio_difference == smallest_ratio_difference && is_filled))
        best_grid = grid;
      smallest_ratio_difference = std::min(smallest_ratio_difference, ratio_difference);
    }
  }
  return best_grid;
}

at::Tensor ImageProcessor::process(const at::Tensor& image, std::optional<int64_t> max_pixels) const {
  VLMTRAIN_CHECK(image.scalar_type() == at::kByte && image.dim() == 3 && image.size(0) == 3,
                 "the image to split must be uint8 [3, height, width]");
  const TileGrid grid = compute_grid({image.size(1), image.size(2)}, max_pixels);
  const int64_t side = tile_settings().side;
  const auto resize_to_grid = [&](int64_t rows, int64_t columns) {
    return image::resize_image(image, rows * side, columns * side, tile_settings().filter);
  };
  at::Tensor tiles = at::empty({grid.num_tiles(), 3, side, side}, at::kByte);
  split_tiles(resize_to_grid(grid.rows, grid.columns), side, tiles.narrow(0, 0, grid.num_cells()));
  if (grid.num_cells() > 1) tiles.select(0, grid.num_cells()).copy_(resize_to_grid(1, 1));
  return tiles;
}

VideoSettings VideoSettings::read(const std::filesystem::path& folder, const VisionConfig& vision,
                                  const ProcessorSettings& settings) {
  const auto file = PreprocessorConfig::find_for_videos(folder);
  if (!file) {
    throw data_error("{}: has no video settings; copy the checkpoint's video_preprocessor_config.json there",
                     folder.string());
  }
  std::set<std::string_view> supported_keys = get_tile_config_keys();
  supported_keys.insert({// read here
                         "num_frames", "initial_shift", "video_processor_type",
                         // image keys, for a checkpoint without a video file
                         "min_patches", "max_patches", "crop_to_patches", "image_processor_type",
                         "feature_extractor_type",
                         // without effect: frames are always sampled at data.video_fps
                         "do_sample_frames", "fps", "return_metadata", "video_metadata"});
  file->reject_other_keys(supported_keys);
  VideoSettings result{.tile = read_tile_settings(*file, vision),
                       .num_frames = std::nullopt,
                       .initial_shift = file->value("initial_shift", true),
                       .sampling_fps = settings.video_fps,
                       .max_frames = settings.video_max_frames};
  if (file->find("num_frames") != nullptr) {
    result.num_frames = file->value<int64_t>("num_frames", 0);
    models::check_size(*result.num_frames, "num_frames", image::kMaxVideoFrames, file->name());
  }
  return result;
}

std::vector<int64_t> VideoSettings::sample_frame_indices(const image::VideoInfo& video) const {
  if (auto all_frames = list_preselected_frames(video, max_frames)) return *std::move(all_frames);
  const double fps = video.fps > 0 ? video.fps : sampling_fps;
  const auto total_frames = static_cast<double>(video.num_frames);
  // The cast rounds toward zero, as int() in transformers.
  const int64_t target_frames = video.is_frame_list ? max_frames
                                : num_frames
                                    ? *num_frames
                                    : static_cast<int64_t>(std::min(total_frames, total_frames / fps * sampling_fps));
  const int64_t count = std::clamp<int64_t>(target_frames, 1, std::min(max_frames, video.num_frames));
  const double sampling_interval = total_frames / static_cast<double>(count);
  // torch.arange in fp32, as in transformers, for equal rounding.
  const at::Tensor indices =
      at::arange(initial_shift ? sampling_interval / 2 : 0.0, total_frames, sampling_interval, at::kFloat)
          .to(at::kLong)
          .clamp_max_(video.num_frames - 1);
  return {indices.const_data_ptr<int64_t>(), indices.const_data_ptr<int64_t>() + indices.numel()};
}

}  // namespace vlmtrain::models::internvl
