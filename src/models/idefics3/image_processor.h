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

/// What a checkpoint's preprocessor_config.json says, as far as it changes pixels.
struct ImageProcessorSettings {
  bool do_image_splitting;
  int64_t longest_edge;  ///< size.longest_edge: every picture's longer side is brought to it, up or down
  int64_t tile_size;     ///< max_image_size.longest_edge: the side of a tile in pixels
  image::Filter filter;  ///< resample
  image::Normalization normalization;
};

/// Reads preprocessor_config.json of an "Idefics3ImageProcessor" or "SmolVLMImageProcessor"; what it leaves out has
/// transformers' default. A data error, naming the key, for another processor
/// and for settings that this one does not follow.
ImageProcessorSettings read_image_processor_settings(const PreprocessorConfig& config);

/// The same of a video's frames, which are pictures that are not split, of a "SmolVLMVideoProcessor" or of the images'
/// file where that says of videos, too. `size` counts before video_sampling.video_size, as in transformers.
ImageProcessorSettings read_frame_settings(const PreprocessorConfig& config);

/// The cells into which a picture is cut; 0 x 0 where it is one tile, not cut.
struct TileGrid {
  int64_t rows = 0;
  int64_t columns = 0;

  bool operator==(const TileGrid&) const = default;

  bool is_split() const { return rows > 0; }

  /// The cells and, after them, the whole picture once more; or the one tile.
  int64_t tiles() const { return rows * columns + 1; }
};

struct TiledImage {
  at::Tensor tiles;  ///< uint8 [grid.tiles(), 3, tile_size, tile_size]: cells row by row, the whole picture last
  TileGrid grid;
};

/// Pictures to tiles, to the bit as transformers 5.23 does with torchvision 0.29. Immutable, so thread-safe.
///
/// A picture's longer side is brought to `longest_edge`, then both up to whole tiles, then it is cut; the last tile is
/// the whole resized picture squeezed into a square. Without splitting there is that last tile only.
class ImageProcessor {
 public:
  /// `max_pixels` (data.image_max_pixels) bounds the pixels of a picture's cells together: where they would be more,
  /// the picture is resized to the most tiles along its longer side that keep to it; nothing is cut away. A usage error
  /// where it is less than one tile.
  explicit ImageProcessor(const ImageProcessorSettings& settings, std::optional<int64_t> max_pixels = std::nullopt);

  const ImageProcessorSettings& settings() const { return settings_; }

  /// The grid that process() would give, known from the size alone. `max_pixels`, here and below: what a picture is
  /// limited to beside what the constructor was given; no less than one tile.
  TileGrid compute_grid(image::ImageSize size, std::optional<int64_t> max_pixels = std::nullopt) const;

  /// `image` as image::decode_image gives it: uint8 [3, height, width].
  TiledImage process(const at::Tensor& image, std::optional<int64_t> max_pixels = std::nullopt) const;

  /// The model's input: float32 of `tiles`' shape, on their device.
  at::Tensor normalize(const at::Tensor& tiles) const;

 private:
  /// The two sizes that a picture passes through on its way to its cells.
  struct Sizes {
    image::ImageSize resized;  ///< longer side at the longest edge
    image::ImageSize tiled;    ///< whole tiles
  };

  Sizes limit_sizes(image::ImageSize size, std::optional<int64_t> max_pixels) const;
  Sizes compute_sizes(image::ImageSize size, int64_t longest_edge) const;

  ImageProcessorSettings settings_;
  std::optional<int64_t> max_pixels_;
};

}  // namespace vlmtrain::models::idefics3
