#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
#include <string_view>
#include <vector>

#include "models/internvl/config.h"
#include "models/processing/preprocessor_config.h"
#include "vlmtrain/image/normalize.h"
#include "vlmtrain/image/resize.h"
#include "vlmtrain/image/size.h"
#include "vlmtrain/image/video.h"
#include "vlmtrain/models/processor.h"

namespace vlmtrain::models::internvl {

/// The conversion of an image or a video frame to a tile.
struct TileSettings {
  int64_t side;  ///< in pixels
  image::Filter filter;
  image::Normalization normalization;
};

/// The part of preprocessor_config.json that affects pixels.
struct ImageProcessorSettings {
  TileSettings tile;
  int64_t min_tiles, max_tiles;  ///< min_patches and max_patches: number of cells that an image is split into
};

/// Reads the common settings of GotOcr2ImageProcessor and InternVLVideoProcessor, with
/// transformers' defaults. Throws UserError (kBadData), which names the key, for unsupported
/// settings and for tiles of another size than the tower's.
TileSettings read_tile_settings(const PreprocessorConfig& file, const VisionConfig& vision);
/// Returns the keys that read_tile_settings() reads, and those known not to affect pixels.
const std::set<std::string_view>& get_tile_keys();

/// Reads preprocessor_config.json, or section image_processor of processor_config.json. Ignores
/// `crop_to_patches`, since InternVLProcessor always splits images.
ImageProcessorSettings read_image_settings(const std::filesystem::path& folder, const VisionConfig& vision);

/// The grid of cells that an image is split into; 1 x 1 if it is one tile.
struct TileGrid {
  int64_t rows = 1;
  int64_t columns = 1;

  bool operator==(const TileGrid&) const = default;

  int64_t cells() const { return rows * columns; }
  /// Returns the number of tiles: the cells and, if there are several, the full image.
  int64_t tiles() const { return cells() == 1 ? 1 : cells() + 1; }
};

/// The conversion of images to tiles, bitwise equal to transformers 5.23 with torchvision 0.29.
/// Immutable, so thread-safe.
/// The grid is the one of min_tiles to max_tiles cells with the aspect ratio nearest to the
/// image's; among equally near ones, the largest that the image fills more than half. The image is
/// resized to the grid regardless of its aspect ratio and split. The last tile is the full image,
/// resized to a square.
class ImageProcessor {
 public:
  /// Creates the processor. `max_pixels` (data.image_max_pixels) limits the total pixels of an
  /// image's cells. Throws UserError (kUsage) if it is less than one tile.
  ImageProcessor(const ImageProcessorSettings& settings, std::optional<int64_t> max_pixels);

  const TileSettings& tile() const { return settings_.tile; }
  /// Returns the minimum number of cells.
  int64_t min_tiles() const { return std::min(settings_.min_tiles, settings_.max_tiles); }
  int64_t max_tiles() const { return settings_.max_tiles; }

  /// Returns the grid of process() for an image size. `max_pixels`, here and below, is a limit
  /// besides the constructor's, at least one tile.
  TileGrid compute_grid(image::ImageSize size, std::optional<int64_t> max_pixels) const;

  /// Converts `image`, uint8 [3, height, width] as of image::decode_image() → uint8 [grid.tiles(),
  /// 3, side, side], cells row by row, then the full image.
  at::Tensor process(const at::Tensor& image, std::optional<int64_t> max_pixels) const;

 private:
  ImageProcessorSettings settings_;
};

/// The video settings of a checkpoint (PreprocessorConfig::find_for_videos()) and of the run.
struct VideoSettings {
  TileSettings tile;                    ///< of each frame
  std::optional<int64_t> num_frames{};  ///< per video; nothing: by sampling_fps
  bool initial_shift = true;            ///< samples the middles of equal intervals, else their starts
  double sampling_fps = 2;              ///< data.video_fps
  int64_t max_frames = 128;             ///< data.video_max_frames

  static VideoSettings read(const std::filesystem::path& folder, const VisionConfig& vision,
                            const ProcessorSettings& settings);

  /// Returns the ascending indices of the sampled frames, at least one, as
  /// InternVLVideoProcessor.sample_frames of transformers 5.23. Unlike it, returns all frames of a
  /// video with fewer frames. A video of unknown frame rate is sampled as if it had the sampling
  /// rate. For a list of frames, returns all up to max_frames.
  std::vector<int64_t> sample(const image::VideoInfo& video) const;
};

}  // namespace vlmtrain::models::internvl
