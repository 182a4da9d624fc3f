#pragma once

#include <ATen/core/Tensor.h>
#include <nlohmann/json.hpp>

#include <cstdint>
#include <optional>
#include <string>

#include "models/processing/preprocessor_config.h"
#include "vlmtrain/image/decode.h"
#include "vlmtrain/image/normalize.h"
#include "vlmtrain/image/resize.h"

namespace vlmtrain::models::idefics3 {

/// The part of preprocessor_config.json that affects pixels.
struct ImageProcessorSettings {
  bool do_image_splitting;
  int64_t longest_edge;  ///< size.longest_edge: target of an image's longer side, up or down
  int64_t tile_size;     ///< max_image_size.longest_edge: side of a tile, in pixels
  image::Filter filter;  ///< resample
  image::Normalization normalization;
};

/// Reads preprocessor_config.json of an "Idefics3ImageProcessor" or "SmolVLMImageProcessor", with
/// transformers' defaults. Throws UserError (kBadData), which names the key, for other types and
/// unsupported settings.
ImageProcessorSettings read_image_processor_settings(const PreprocessorConfig& config);

/// Reads the settings of video frames, which are images without splitting, of a
/// "SmolVLMVideoProcessor" or of the image processor's file if it has video settings. `size` takes
/// precedence over video_sampling.video_size, as in transformers.
ImageProcessorSettings read_frame_settings(const PreprocessorConfig& config);

/// The grid of cells that an image is split into; 0 x 0 if it is not split.
struct TileGrid {
  int64_t rows = 0;
  int64_t columns = 0;

  bool operator==(const TileGrid&) const = default;

  bool is_split() const { return rows > 0; }

  /// Returns the number of tiles: cells and the full image.
  int64_t tiles() const { return rows * columns + 1; }
};

/// The tiles of an image.
struct TiledImage {
  at::Tensor tiles;  ///< uint8 [grid.tiles(), 3, tile_size, tile_size]: cells row by row, then the full image
  TileGrid grid;
};

/// The conversion of images to tiles, bitwise equal to transformers 5.23 with torchvision 0.29.
/// Immutable, so thread-safe.
/// An image is resized to `longest_edge` along its longer side, then both sides up to full tiles,
/// then split. The last tile is the full resized image, squeezed into a square. Without splitting
/// it is the only tile.
class ImageProcessor {
 public:
  /// Creates the processor. `max_pixels` (data.image_max_pixels) limits the total pixels of an
  /// image's cells. A larger image is resized to the most tiles along its longer side within the
  /// limit, without cropping. Throws UserError (kUsage) if the limit is less than one tile.
  explicit ImageProcessor(const ImageProcessorSettings& settings, std::optional<int64_t> max_pixels = std::nullopt);

  const ImageProcessorSettings& settings() const { return settings_; }

  /// Returns the grid of process() for an image size. `max_pixels`, here and below, is a limit
  /// besides the constructor's, at least one tile.
  TileGrid compute_grid(image::ImageSize size, std::optional<int64_t> max_pixels = std::nullopt) const;

  /// Converts `image`, uint8 [3, height, width] as of image::decode_image().
  TiledImage process(const at::Tensor& image, std::optional<int64_t> max_pixels = std::nullopt) const;

  /// Returns the model's input: float32, with shape and device of `tiles`.
  at::Tensor normalize(const at::Tensor& tiles) const;

 private:
  /// The intermediate sizes of resizing an image to its cells.
  struct Sizes {
    image::ImageSize resized;  ///< longer side at the longest edge
    image::ImageSize tiled;    ///< full tiles
  };

  Sizes limit_sizes(image::ImageSize size, std::optional<int64_t> max_pixels) const;
  Sizes compute_sizes(image::ImageSize size, int64_t longest_edge) const;

  ImageProcessorSettings settings_;
  std::optional<int64_t> max_pixels_;
};

}  // namespace vlmtrain::models::idefics3
