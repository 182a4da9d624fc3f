#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "models/internvl/family.h"
#include "models/processing/preprocessor_config.h"
#include "vlmtrain/base/tensor_fwd.h"
#include "vlmtrain/image/pixel_transforms.h"
#include "vlmtrain/image/resize.h"
#include "vlmtrain/image/size.h"
#include "vlmtrain/image/video.h"
#include "vlmtrain/models/processor.h"

namespace vlmtrain::models::internvl {

/// Settings of the conversion of an image or a video frame to a tile.
struct TileSettings {
  int64_t side;  ///< side of a tile, in pixels
  image::ResampleFilter filter;
  image::Normalization normalization;
};

/// Settings of preprocessor_config.json that affect pixels.
struct ImageProcessorSettings {
  TileSettings tile;
  int64_t min_cells, max_cells;  ///< min_patches, max_patches: limits of the number of cells of an image
};

/// Reads the common settings of GotOcr2ImageProcessor and InternVLVideoProcessor, with
/// transformers' defaults. Throws UserError (kBadData) with the key for unsupported settings, and
/// for tiles of another size than image_size of `vision`.
TileSettings read_tile_settings(const PreprocessorConfig& file, const VisionConfig& vision);
/// Returns the keys that read_tile_settings() supports, and keys that do not affect pixels.
const std::set<std::string_view>& get_tile_config_keys();

/// Reads preprocessor_config.json in `folder`, or section image_processor of processor_config.json.
/// Ignores `crop_to_patches`, since InternVLProcessor always splits images. Throws as
/// read_tile_settings(), also for missing files and other processor types.
ImageProcessorSettings read_image_settings(const std::filesystem::path& folder, const VisionConfig& vision);

/// Grid of cells that an image is split into; 1 x 1 if it is not split.
struct TileGrid {
  int64_t rows = 1;
  int64_t columns = 1;

  bool operator==(const TileGrid&) const = default;

  int64_t num_cells() const { return rows * columns; }
  /// Returns the number of tiles: the cells and, if there are several, one for the full image.
  int64_t num_tiles() const { return num_cells() == 1 ? 1 : num_cells() + 1; }
};

/// Conversion of images to tiles, bitwise equal to transformers 5.23 with torchvision 0.29. The
/// grid has from min_cells() to max_cells() cells and the aspect ratio nearest to the image's.
/// Among equally near grids, it is the largest that the image fills more than half. The image is
/// resized to the grid, regardless of its aspect ratio, and split into cells. The last tile is the
/// full image, resized to a square. Immutable, so thread-safe.
class ImageProcessor {
 public:
  /// Creates the processor. `max_pixels` (data.image_max_pixels) limits the total pixels of an
  /// image's cells. Throws UserError (kUsage) if one tile exceeds it.
  ImageProcessor(const ImageProcessorSettings& settings, std::optional<int64_t> max_pixels);

  const TileSettings& tile_settings() const { return settings_.tile; }
  /// Returns the minimum number of cells; data.image_max_pixels can lower it.
  int64_t min_cells() const { return std::min(settings_.min_cells, settings_.max_cells); }
  /// Returns the maximum number of cells.
  int64_t max_cells() const { return settings_.max_cells; }

  /// Returns the grid of process() for an image of this size. `max_pixels`, here and below, is an
  /// additional limit for this image; one below a tile permits one tile.
  TileGrid compute_grid(image::ImageSize size, std::optional<int64_t> max_pixels) const;

  /// Converts `image`, uint8 [3, height, width] as from image::decode_image(), to tiles: uint8
  /// [grid.num_tiles(), 3, side, side], the cells row by row, then the full image.
  at::Tensor process(const at::Tensor& image, std::optional<int64_t> max_pixels) const;

 private:
  ImageProcessorSettings settings_;
};

/// Video settings of a checkpoint (PreprocessorConfig::find_for_videos()) and of the run.
struct VideoSettings {
  TileSettings tile;                    ///< of each frame
  std::optional<int64_t> num_frames{};  ///< per video; nothing: sampling_fps decides
  bool initial_shift = true;            ///< sample the middles of equal intervals, else their starts
  double sampling_fps = 2;              ///< data.video_fps
  int64_t max_frames = 128;             ///< data.video_max_frames

  /// Reads the settings of the checkpoint in `folder`. Throws as read_image_settings().
  static VideoSettings read(const std::filesystem::path& folder, const VisionConfig& vision,
                            const ProcessorSettings& settings);

  /// Returns the ascending indices of the frames to use, at least one, as
  /// InternVLVideoProcessor.sample_frames of transformers 5.23, but with all frames of a video that
  /// has too few. A video of unknown frame rate is assumed to have sampling_fps. For a list of
  /// frames, returns all or max_frames evenly spaced ones.
  std::vector<int64_t> sample_frame_indices(const image::VideoInfo& video) const;
};

inline constexpr std::string_view kImageToken = "<IMG_CONTEXT>";  ///< its embedding is replaced by an image feature

/// Returns the text of an image: `<img>`, kImageToken for each image token of all tiles, `</img>`.
std::string format_image_text(int64_t tiles, int64_t image_tokens_per_tile);

/// Returns the text of a video: one line `Frame1: <img>…</img>` per frame.
std::string format_video_text(int64_t frames, int64_t image_tokens_per_tile);

/// Returns the number of tokens of format_video_text(). Exact if `folder` has a tokenizer.json;
/// otherwise counted as Qwen's tokenizers split it: one token per word, digit, punctuation mark and
/// line break.
int64_t count_video_text_tokens(int64_t frames, int64_t image_tokens_per_tile, const std::filesystem::path& folder);

/// Returns the processor of InternVL (transformers' InternVLProcessor). Each image becomes one or
/// several tiles, each frame of a video one tile. Throws UserError (kBadData) if the tokenizer does
/// not match `config`.
std::unique_ptr<Processor> make_processor(const Config& config, const ImageProcessor& images,
                                          const VideoSettings& videos, text::Tokenizer tokenizer,
                                          text::ChatTemplate chat_template, const ProcessorSettings& settings);

}  // namespace vlmtrain::models::internvl
