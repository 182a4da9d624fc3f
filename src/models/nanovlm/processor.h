#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "models/nanovlm/family.h"
#include "vlmtrain/base/tensor_fwd.h"
#include "vlmtrain/image/size.h"
#include "vlmtrain/models/processor.h"

namespace vlmtrain::models::nanovlm {

/// Grid of cells that an image is split into. Cells and global image are tiles.
struct TileGrid {
  int64_t rows = 1;
  int64_t columns = 1;
  bool has_global_image = false;  ///< the full image, resized to one tile, precedes the cells

  bool operator==(const TileGrid&) const = default;

  int64_t num_cells() const { return rows * columns; }
  int64_t num_tiles() const { return num_cells() + (has_global_image ? 1 : 0); }
};

/// Conversion of images to tiles, as nanoVLM's DynamicResize and GlobalAndSplitImages; without
/// max_img_size, as its resize to a square. Resized cells are bitwise equal to Pillow's. nanoVLM
/// does not round the global image; here it is rounded to bytes, with an error of at most half a
/// byte (1/510 of the range). Immutable, so thread-safe.
class ImageProcessor {
 public:
  /// Creates the processor. `max_pixels` (data.image_max_pixels) limits the total pixels of an
  /// image's cells. A larger image is resized to the largest number of tiles along its longer side
  /// that fits the limit. Throws UserError (kUsage) if one tile exceeds the limit.
  explicit ImageProcessor(const Config& config, std::optional<int64_t> max_pixels = std::nullopt);

  /// Returns the grid of process() for an image of this size. `max_pixels`, here and below, is an
  /// additional limit for this image. REQUIRES: it is at least one tile.
  TileGrid compute_grid(image::ImageSize size, std::optional<int64_t> max_pixels = std::nullopt) const;

  /// Returns the tiles of an image: uint8 [3, height, width] as from image::decode_image() → uint8
  /// [tiles, 3, side, side], the global image first, then the cells row by row.
  at::Tensor process(const at::Tensor& image, std::optional<int64_t> max_pixels = std::nullopt) const;

 private:
  image::ImageSize compute_resized_size(image::ImageSize size, std::optional<int64_t> max_pixels) const;
  image::ImageSize scale_to_longest_side(image::ImageSize size, int64_t longest_side) const;

  int64_t tile_size_;
  std::optional<int64_t> max_side_;
  bool resize_to_max_side_;
  bool has_global_image_;
  std::optional<int64_t> max_pixels_;
};

/// Returns the text of an image: `<|global_image|>` and the global image's tokens, then for each
/// cell `<row_r_col_c>` and its image tokens. A single cell is omitted if the global image has a
/// token. Without max_img_size, the text has image tokens only. REQUIRES:
/// !config.puts_images_before_text().
std::string format_image_text(const Config& config, TileGrid grid);

/// Returns the number of tokens of format_image_text(), or the number of image features if
/// config.puts_images_before_text().
int64_t count_image_text_tokens(const Config& config, TileGrid grid);

/// Loads nanoVLM's tokenizer: `folder`/tokenizer.json, with the tokens of vlm_extra_tokens appended
/// if they are missing. Throws UserError (kBadData) if the file is missing, as in nanoVLM's own
/// checkpoints; the error names the checkpoint to download it from.
text::Tokenizer load_tokenizer(const Config& config, const std::filesystem::path& folder);

/// Returns the processor of nanoVLM (its datasets.py). The text has the tokens of each image's tiles,
/// preceded by `<image: N>` if there are several images. In release v0.1, the features of all
/// images precede the text. Throws UserError (kBadData) if the tokenizer does not match `config`.
std::unique_ptr<Processor> make_processor(const Config& config, const ImageProcessor& images, text::Tokenizer tokenizer,
                                          text::ChatTemplate chat_template, const ProcessorSettings& settings);

}  // namespace vlmtrain::models::nanovlm
