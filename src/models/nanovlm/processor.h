#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>

#include "models/nanovlm/model.h"
#include "models/processing/conversation_processor.h"
#include "vlmtrain/image/decode.h"

namespace vlmtrain::models::nanovlm {

/// The cells into which a picture is cut.
struct TileGrid {
  int64_t rows = 1;
  int64_t columns = 1;
  bool has_global_image = false;  ///< squeezed into a tile of its own before the cells

  bool operator==(const TileGrid&) const = default;

  int64_t cells() const { return rows * columns; }
  int64_t tiles() const { return cells() + (has_global_image ? 1 : 0); }
};

/// Pictures to tiles: nanoVLM's DynamicResize and GlobalAndSplitImages, or, without max_img_size, its resize to a
/// square. It resizes with Pillow, whose bytes these are. The whole picture beside the cells it makes of float pixels
/// and does not round; here it is rounded to bytes, by at most half of one (1/510 of the range). Immutable, so
/// thread-safe.
class ImageProcessor {
 public:
  /// `max_pixels` (data.image_max_pixels) bounds the pixels of a picture's cells together: where they would be more,
  /// its longer side gets the most tiles that keep to it. A usage error where it is less than one tile.
  explicit ImageProcessor(const Config& config, std::optional<int64_t> max_pixels = std::nullopt);

  /// The grid that process() would give, known from the size alone. `max_pixels`, here and below: what a picture is
  /// limited to beside what the constructor was given; no less than one tile.
  TileGrid compute_grid(image::ImageSize size, std::optional<int64_t> max_pixels = std::nullopt) const;

  /// `image` as image::decode_image gives it: uint8 [3, height, width] → uint8 [tiles, 3, side, side], the whole
  /// picture first, then the cells row by row.
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

/// What stands for an image in the model's text: `<|global_image|>` and the image tokens of the whole picture, then for
/// each cell `<row_r_col_c>` and its image tokens; without the cells where there is but one and the whole picture has a
/// token. Without max_img_size the image tokens alone. REQUIRES: the config has tokens for images.
std::string format_image_text(const Config& config, TileGrid grid);

/// How many tokens that is; without such tokens, the features before the text.
int64_t count_image_text(const Config& config, TileGrid grid);

/// The tokenizer that nanoVLM makes: `folder`/tokenizer.json and, behind its tokens, those of vlm_extra_tokens that it
/// has not. Throws UserError (kBadData) that says what to fetch where there is none, as in nanoVLM's own checkpoints.
text::Tokenizer load_tokenizer(const Config& config, const std::filesystem::path& folder);

/// nanoVLM's datasets.py: each image becomes its tiles in the text, with `<image: N>` before it where there are more
/// than one; in the release v0.1 the features of all images stand before the text.
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
