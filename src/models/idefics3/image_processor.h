#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "models/processing/preprocessor_config.h"
#include "vlmtrain/base/tensor_fwd.h"
#include "vlmtrain/image/pixel_transforms.h"
#include "vlmtrain/image/resize.h"
#include "vlmtrain/image/size.h"

namespace vlmtrain::models::idefics3 {

/// Settings of preprocessor_config.json that affect pixels.
struct ImageProcessorSettings {
  bool do_image_splitting;       ///< false: each image becomes one tile
  int64_t longest_edge;          ///< size.longest_edge: length that the longer side is scaled to, in pixels
  int64_t tile_size;             ///< max_image_size.longest_edge: side of a tile, in pixels
  image::ResampleFilter filter;  ///< resample
  image::Normalization normalization;
};

/// Reads preprocessor_config.json of an "Idefics3ImageProcessor" or "SmolVLMImageProcessor", with
/// transformers' defaults. Throws UserError (kBadData) with the key for other types and unsupported
/// settings.
ImageProcessorSettings read_image_processor_settings(const PreprocessorConfig& config);

/// Reads the settings of the checkpoint in `folder`. Throws as read_image_processor_settings(), and
/// UserError (kBadData) if the checkpoint has none.
ImageProcessorSettings load_image_processor_settings(const std::filesystem::path& folder);

/// Reads the settings of video frames from the file of a "SmolVLMVideoProcessor", or from the image
/// processor's file if it has video settings. Frames are not split. `size` takes precedence over
/// video_sampling.video_size, as in transformers. Throws as read_image_processor_settings().
ImageProcessorSettings read_frame_settings(const PreprocessorConfig& config);

/// Grid of cells that an image is split into; 0 x 0 if it is not split.
struct TileGrid {
  int64_t rows = 0;
  int64_t columns = 0;

  bool operator==(const TileGrid&) const = default;

  bool is_split() const { return rows > 0; }

  /// Returns the number of tiles: the cells and one for the full image.
  int64_t num_tiles() const { return rows * columns + 1; }
};

/// Conversion of images to tiles, bitwise equal to transformers 5.23 with torchvision 0.29. An
/// image is scaled until its longer side is `longest_edge`, enlarged to full tiles along both
/// sides, and split into cells. The last tile is the full image, resized to a square regardless of
/// its aspect ratio; without splitting it is the only tile. Immutable, so thread-safe.
class ImageProcessor {
 public:
  /// Creates the processor. `max_pixels` (data.image_max_pixels) limits the total pixels of an
  /// image's cells. A larger image is resized, without cropping, to the largest number of tiles
  /// along its longer side that fits the limit. Throws UserError (kUsage) if one tile exceeds the
  /// limit.
  explicit ImageProcessor(const ImageProcessorSettings& settings, std::optional<int64_t> max_pixels = std::nullopt);

  const ImageProcessorSettings& settings() const { return settings_; }

  /// Returns the grid of process() for an image of this size. `max_pixels`, here and below, is an
  /// additional limit for this image. REQUIRES: it is at least one tile.
  TileGrid compute_grid(image::ImageSize size, std::optional<int64_t> max_pixels = std::nullopt) const;

  /// Converts `image`, uint8 [3, height, width] as from image::decode_image(), to tiles: uint8
  /// [grid.num_tiles(), 3, tile_size, tile_size], the cells row by row, then the full image.
  at::Tensor process(const at::Tensor& image, std::optional<int64_t> max_pixels = std::nullopt) const;

  /// Returns the model's input: float32, with shape and device of `tiles`.
  at::Tensor normalize(const at::Tensor& tiles) const;

 private:
  /// Sizes of an image in the two steps of resizing.
  struct TilingSizes {
    image::ImageSize resized;  ///< after scaling the longer side to the longest edge
    image::ImageSize tiled;    ///< after rounding both sides up to full tiles
  };

  /// Returns the sizes within the constructor's limit and `max_pixels`.
  TilingSizes limit_tiling_sizes(image::ImageSize size, std::optional<int64_t> max_pixels) const;
  TilingSizes compute_tiling_sizes(image::ImageSize size, int64_t longest_edge) const;

  ImageProcessorSettings settings_;
  std::optional<int64_t> max_pixels_;
};

}  // namespace vlmtrain::models::idefics3
