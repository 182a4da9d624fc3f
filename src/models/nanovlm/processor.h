#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>

#include "models/nanovlm/model.h"
#include "models/processing/conversation_processor.h"
#include "vlmtrain/image/decode.h"

namespace vlmtrain::models::nanovlm {

/// Grid of the tiles of an image.
struct TileGrid {
  int64_t rows = 1;
  int64_t columns = 1;
  bool has_global_image = false;  ///< the image squeezed into one tile precedes the cells

  bool operator==(const TileGrid&) const = default;

  int64_t cells() const { return rows * columns; }
  int64_t tiles() const { return cells() + (has_global_image ? 1 : 0); }
};

/// Splitter of images into tiles: nanoVLM's DynamicResize and GlobalAndSplitImages, or its resize
/// to a square for a config without max_img_size. Resizing matches Pillow's bytes. nanoVLM keeps
/// the global image as unrounded floats; here it is rounded to bytes, an error of at most half a
/// byte (1/510 of the range). Immutable, so thread-safe.
class ImageProcessor {
 public:
  /// Creates the splitter. `max_pixels` (data.image_max_pixels) limits the pixels of an image's
  /// cells together: the longer side gets the largest number of tiles within it. Throws UserError
  /// (kUsage) if it is less than one tile.
  explicit ImageProcessor(const Config& config, std::optional<int64_t> max_pixels = std::nullopt);

  /// Returns the grid of process() for an image of this size. `max_pixels`, here and below: a
  /// further limit for this image, at least one tile.
  TileGrid compute_grid(image::ImageSize size, std::optional<int64_t> max_pixels = std::nullopt) const;

  /// Returns the tiles of an image: uint8 [3, height, width] of image::decode_image → uint8 [tiles,
  /// 3, side, side], the global image first, then the cells row by row.
  at::Tensor process(const at::Tensor& image, std::optional<int64_t> max_pixels = std::nullopt) const;

 private:
  image::ImageSize compute_resized_size(image::ImageSize size, std::optional<int64_t> max_pixels) const;
  image::ImageSize resize_longest_side(image::ImageSize size, int64_t longest) const;

  int64_t tile_;
  std::optional<int64_t> max_size_;
  bool resize_to_max_side_;
  bool has_global_image_;
  std::optional<int64_t> max_pixels_;
};

/// Returns the model's text for an image: `<|global_image|>` and the global image's tokens, then
/// for each cell `<row_r_col_c>` and its image tokens; no cells for a single cell if the global
/// image has a token; only image tokens without max_img_size. REQUIRES: the config has image
/// tokens.
std::string format_image_text(const Config& config, TileGrid grid);

/// Returns the number of tokens of format_image_text(); without image tokens, the number of
/// features before the text.
int64_t count_image_text(const Config& config, TileGrid grid);

/// Loads nanoVLM's tokenizer: `folder`/tokenizer.json, followed by the missing tokens of
/// vlm_extra_tokens. Throws UserError (kBadData) that names the download if the file is missing,
/// as in nanoVLM's own checkpoints.
text::Tokenizer load_tokenizer(const Config& config, const std::filesystem::path& folder);

/// Processor of nanoVLM (its datasets.py): the text has the tokens of each image's tiles, preceded
/// by `<image: N>` for several images; in release v0.1 the features of all images precede the text.
class Processor final : public ConversationProcessor {
 public:
  Processor(Config config, ImageProcessor images, text::Tokenizer tokenizer, text::ChatTemplate chat_template,
            ProcessorSettings settings);

 private:
  MediaLayout layout_image(image::ImageSize size, std::optional<int64_t> max_pixels) const override;
  at::Tensor preprocess_image(const at::Tensor& image, std::optional<int64_t> max_pixels) const override;
  std::vector<MediaPreview> preview_images(const at::Tensor& rows, const MediaLayout& layout, image::ImageSize size,
                                           std::optional<int64_t> max_pixels) const override;
  int64_t count_tokens(image::ImageSize size, std::optional<int64_t> max_pixels) const override;
  std::optional<ShrinkRange> shrink_range(data::MediaKind kind) const override;
  int64_t max_positions() const override { return config_.max_positions; }
  std::string describe_position_overflow(const std::string& id, int64_t tokens) const override;
  EncodedChat encode(const text::RenderedChat& chat, std::span<const MediaLayout> images) const override;
  EncodedChat encode_after_images(const text::RenderedChat& chat, std::span<const MediaLayout> images) const;
  EncodedChat encode_with_tokens(const text::RenderedChat& chat, std::span<const MediaLayout> images) const;

  Config config_;
  ImageProcessor images_;
  int64_t image_token_id_ = -1;
};

}  // namespace vlmtrain::models::nanovlm
