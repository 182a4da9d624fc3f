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

/// How a picture, or a frame of a video, becomes a tile.
struct TileSettings {
  int64_t side;  ///< of a tile in pixels
  image::Filter filter;
  image::Normalization normalization;
};

/// What a checkpoint's preprocessor_config.json says, as far as it changes pixels.
struct ImageProcessorSettings {
  TileSettings tile;
  int64_t min_tiles, max_tiles;  ///< min_patches and max_patches: cells into which a picture is cut
};

/// The values that images and videos have alike, of a GotOcr2ImageProcessor or InternVLVideoProcessor; what `file`
/// leaves out has transformers' default. A data error names the key of a setting that is not followed, or of a tile
/// that is not the tower's.
TileSettings read_tile_settings(const PreprocessorConfig& file, const VisionConfig& vision);
/// The keys that read_tile_settings() reads, and those known to leave pixels alone.
const std::set<std::string_view>& get_tile_keys();

/// Reads preprocessor_config.json, or section image_processor of processor_config.json, of `folder`. `crop_to_patches`
/// there does not count: InternVLProcessor always cuts.
ImageProcessorSettings read_image_settings(const std::filesystem::path& folder, const VisionConfig& vision);

/// The cells into which a picture is cut, 1 x 1 where it is one tile.
struct TileGrid {
  int64_t rows = 1;
  int64_t columns = 1;

  bool operator==(const TileGrid&) const = default;

  int64_t cells() const { return rows * columns; }
  /// The cells and, where there is more than one, the whole picture once more.
  int64_t tiles() const { return cells() == 1 ? 1 : cells() + 1; }
};

/// Pictures to tiles, to the bit as transformers 5.23 does with torchvision 0.29. Immutable, so thread-safe.
///
/// Of the grids of min_tiles to max_tiles cells that is taken whose ratio of columns to rows is nearest to the
/// picture's of width to height; of equally near ones the largest of which the picture fills more than half. The
/// picture is resized to the grid, whatever its ratio, and cut; the last tile is the whole picture, squashed.
class ImageProcessor {
 public:
  /// `max_pixels` (data.image_max_pixels) bounds the pixels of a picture's cells together. A usage error where it is
  /// less than one tile.
  ImageProcessor(const ImageProcessorSettings& settings, std::optional<int64_t> max_pixels);

  const TileSettings& tile() const { return settings_.tile; }
  /// Cells into which an image is cut.
  int64_t min_tiles() const { return std::min(settings_.min_tiles, settings_.max_tiles); }
  int64_t max_tiles() const { return settings_.max_tiles; }

  /// The grid of process(), known from the size alone. `max_pixels`, here and below: what a picture is limited to
  /// beside what the constructor was given; no less than one tile.
  TileGrid compute_grid(image::ImageSize size, std::optional<int64_t> max_pixels) const;

  /// `image` as image::decode_image gives it: uint8 [3, height, width] → uint8 [grid.tiles(), 3, side, side], cells row
  /// by row, the whole picture last.
  at::Tensor process(const at::Tensor& image, std::optional<int64_t> max_pixels) const;

 private:
  ImageProcessorSettings settings_;
};

/// What a checkpoint says about videos (PreprocessorConfig::find_for_videos), and the run.
struct VideoSettings {
  TileSettings tile;                    ///< each frame becomes one, squashed
  std::optional<int64_t> num_frames{};  ///< of each video; nothing: sampling_fps of a second
  bool initial_shift = true;            ///< frames from the middles of equal parts, else from their beginnings
  double sampling_fps = 2;              ///< data.video_fps
  int64_t max_frames = 128;             ///< data.video_max_frames

  static VideoSettings read(const std::filesystem::path& folder, const VisionConfig& vision,
                            const ProcessorSettings& settings);

  /// Which frames are looked at, ascending, at least one: as InternVLVideoProcessor.sample_frames of transformers 5.23,
  /// but that a video of fewer frames is taken as a whole, where that stops. A video that does not say its frames a
  /// second has as many as are wanted. Of a list of frames all are taken, up to max_frames.
  std::vector<int64_t> sample(const image::VideoInfo& video) const;
};

}  // namespace vlmtrain::models::internvl
