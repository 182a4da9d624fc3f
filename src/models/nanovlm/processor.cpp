#include "models/nanovlm/processor.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>

#include "models/media/medium.h"
#include "models/processing/conversation_processor.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/image/resize.h"
#include "vlmtrain/models/media_preview.h"
#include "vlmtrain/text/tokenizer.h"

namespace vlmtrain::models::nanovlm {

namespace {

using image::ImageSize;
using image::ResampleFilter;

std::string repeat_text(std::string_view text, int64_t times) {
  std::string result;
  for (int64_t i = 0; i < times; ++i) result += text;
  return result;
}

int64_t count_tiles_along_side(double side, int64_t tile_size) {
  return static_cast<int64_t>(std::ceil(side / static_cast<double>(tile_size)));
}

/// Returns true if the text has tokens for the cells. If the global image has a token, it replaces
/// a single cell.
bool has_cell_tokens(const Config& config, TileGrid grid) {
  return config.max_image_side && !(config.has_global_image() && grid.num_cells() == 1);
}

}  // namespace

ImageProcessor::ImageProcessor(const Config& config, std::optional<int64_t> max_pixels)
    : tile_size_(config.vision.image_size),
      max_side_(config.max_image_side),
      resize_to_max_side_(config.resize_to_max_side),
      has_global_image_(config.has_global_image()),
      max_pixels_(max_pixels) {
  if (max_pixels && *max_pixels < tile_size_ * tile_size_) {
    throw usage_error("{} is {}, but one tile of this model has {} pixels; raise it to that or more",
                      keys::data::kImageMaxPixels, *max_pixels, tile_size_ * tile_size_);
  }
}

/// As DynamicResize._get_new_hw of nanoVLM, in its order of operations, since rounding in float64
/// can add a tile.
ImageSize ImageProcessor::scale_to_longest_side(ImageSize size, int64_t longest_side) const {
  const int64_t longer_side = std::max(size.height, size.width), shorter_side = std::min(size.height, size.width);
  const int64_t tiled_longer_side = count_tiles_along_side(static_cast<double>(longer_side), tile_size_) * tile_size_;
  const int64_t new_longer_side = resize_to_max_side_ ? longest_side : std::min(longest_side, tiled_longer_side);
  const double scale = static_cast<double>(new_longer_side) / static_cast<double>(longer_side);
  const int64_t new_shorter_side =
      std::max<int64_t>(count_tiles_along_side(static_cast<double>(shorter_side) * scale, tile_size_), 1) * tile_size_;
  if (size.width >= size.height) return {new_shorter_side, new_longer_side};
  return {new_longer_side, new_shorter_side};
}

ImageSize ImageProcessor::compute_resized_size(ImageSize size, std::optional<int64_t> max_pixels) const {
  if (!max_side_) return {tile_size_, tile_size_};
  constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();
  const int64_t pixel_limit = std::min(max_pixels_.value_or(kNoLimit), max_pixels.value_or(kNoLimit));
  int64_t longest_side = *max_side_;
  ImageSize resized_size = scale_to_longest_side(size, longest_side);
  // Removes tiles along the longer side until the limit is met; the other side follows.
  while (resized_size.height * resized_size.width > pixel_limit) {
    VLMTRAIN_CHECK(longest_side > tile_size_, "one tile is within the limit");
    longest_side -= tile_size_;
    resized_size = scale_to_longest_side(size, longest_side);
  }
  return resized_size;
}

TileGrid ImageProcessor::compute_grid(ImageSize size, std::optional<int64_t> max_pixels) const {
  const ImageSize resized_size = compute_resized_size(size, max_pixels);
  TileGrid grid{resized_size.height / tile_size_, resized_size.width / tile_size_};
  grid.has_global_image = has_global_image_ && grid.num_cells() > 1;
  return grid;
}

at::Tensor ImageProcessor::process(const at::Tensor& image, std::optional<int64_t> max_pixels) const {
  VLMTRAIN_CHECK(image.scalar_type() == at::kByte && image.dim() == 3 && image.size(0) == 3,
                 "the image to split must be uint8 [3, height, width]");
  const ImageSize size{image.size(1), image.size(2)};
  const ImageSize resized_size = compute_resized_size(size, max_pixels);
  const TileGrid grid = compute_grid(size, max_pixels);
  const at::Tensor pixels = image::resize_like_pillow(image, resized_size.height, resized_size.width,
                                                      max_side_ ? ResampleFilter::kBicubic : ResampleFilter::kBilinear);
  at::Tensor tiles = at::empty({grid.num_tiles(), 3, tile_size_, tile_size_}, at::kByte);
  split_tiles(pixels, tile_size_, tiles.narrow(0, grid.num_tiles() - grid.num_cells(), grid.num_cells()));
  if (grid.has_global_image) {
    // nanoVLM resizes the global image as a float tensor, hence not with Pillow's arithmetic.
    tiles.select(0, 0).copy_(
        image::resize_in_floating_point(pixels, tile_size_, tile_size_, ResampleFilter::kBilinear));
  }
  return tiles;
}

std::string format_image_text(const Config& config, TileGrid grid) {
  std::string tile = repeat_text(config.get_extra_token("image_token"), config.image_tokens_per_tile());
  if (!config.max_image_side) return tile;
  std::string text;
  if (config.has_global_image()) text += config.get_extra_token("global_image_token") + tile;
  if (!has_cell_tokens(config, grid)) return text;
  for (int64_t row = 1; row <= grid.rows; ++row) {
    for (int64_t column = 1; column <= grid.columns; ++column) {
      text += config.get_extra_token(fmt::format("r{}c{}", row, column)) + tile;
    }
  }
  return text;
}

int64_t count_image_text_tokens(const Config& config, TileGrid grid) {
  const bool has_tile_markers = config.max_image_side.has_value();
  return grid.num_tiles() * (config.image_tokens_per_tile() + (has_tile_markers ? 1 : 0));
}

text::Tokenizer load_tokenizer(const Config& config, const std::filesystem::path& folder) {
  const auto file = folder / "tokenizer.json";
  if (!std::filesystem::exists(file)) {
    throw data_error(
        "{}: has no tokenizer.json, since nanoVLM's checkpoints only name their tokenizer; download the tokenizer.json "
        "of {} (lm_tokenizer in config.json) to that folder",
        folder.string(), config.tokenizer_name.empty() ? "the text model" : config.tokenizer_name);
  }
  return text::read_tokenizer(folder, list_extra_tokens(folder));
}

namespace {

class TileReader final : public ImageReader {
 public:
  TileReader(const Config& config, const ImageProcessor& image_processor)
      : config_(config), image_processor_(image_processor) {}

  MediaLayout lay_out(ImageSize size, std::optional<int64_t> max_pixels) const override {
    const TileGrid grid = image_processor_.compute_grid(size, max_pixels);
    return {.text = config_.puts_images_before_text() ? "" : format_image_text(config_, grid),
            .pixel_rows = grid.num_tiles()};
  }
  ImageView compute_view(ImageSize size, std::optional<int64_t> max_pixels) const override {
    const TileGrid grid = image_processor_.compute_grid(size, max_pixels);
    const int64_t side = config_.vision.image_size;
    return make_resized_view(size, {.height = grid.rows * side, .width = grid.columns * side});
  }
  at::Tensor preprocess(const at::Tensor& image, std::optional<int64_t> max_pixels) const override {
    return image_processor_.process(image, max_pixels);
  }
  std::vector<MediaPreview> preview(const at::Tensor& rows, const MediaLayout& /*layout*/, ImageSize size,
                                    std::optional<int64_t> max_pixels) const override {
    const TileGrid grid = image_processor_.compute_grid(size, max_pixels);
    std::vector<MediaPreview> previews;
    if (grid.has_global_image) previews.push_back(make_overview_preview(rows.select(0, 0)));
    const int64_t first = grid.has_global_image ? 1 : 0;
    previews.push_back(make_tiled_preview(rows.narrow(0, first, grid.num_cells()), grid.rows, grid.columns));
    return previews;
  }
  std::optional<int64_t> count_tokens(ImageSize size, std::optional<int64_t> max_pixels) const override {
    return count_image_text_tokens(config_, image_processor_.compute_grid(size, max_pixels));
  }
  std::optional<ShrinkRange> get_shrink_range() const override {
    if (!config_.max_image_side) return std::nullopt;
    return make_tile_shrink_range(config_.vision.image_size);
  }

 private:
  Config config_;
  ImageProcessor image_processor_;
};

/// Numbers the images of a conversation that has several.
class NumberedImageEncoder final : public ChatEncoder {
 public:
  NumberedImageEncoder(text::Tokenizer tokenizer, text::ChatTemplate chat_template, int64_t image_token_id)
      : ChatEncoder(std::move(tokenizer), std::move(chat_template),
                    {.image_token_id = image_token_id, .adds_special_tokens = false}) {}

  EncodedChat encode(const text::RenderedChat& chat, std::span<const MediaLayout> media) const override {
    std::vector<MediaLayout> numbered_layouts(media.begin(), media.end());
    for (size_t i = 0; i < numbered_layouts.size() && numbered_layouts.size() > 1; ++i) {
      numbered_layouts[i].text.insert(0, fmt::format("<image: {}>", i));
    }
    return ChatEncoder::encode(chat, numbered_layouts);
  }
};

/// Puts the features of all images before the text (release v0.1).
class LeadingImageEncoder final : public ChatEncoder {
 public:
  LeadingImageEncoder(text::Tokenizer tokenizer, text::ChatTemplate chat_template, int64_t tokens_per_tile)
      : ChatEncoder(std::move(tokenizer), std::move(chat_template), {}), tokens_per_tile_(tokens_per_tile) {}

  EncodedChat encode(const text::RenderedChat& chat, std::span<const MediaLayout> media) const override {
    constexpr int64_t kPlaceholderTokenId = 0;  // any id is valid: an image feature replaces its embedding
    EncodedChat text = ChatEncoder::encode(chat, media);
    int64_t num_image_features = 0;
    for (const MediaLayout& image : media) num_image_features += image.pixel_rows * tokens_per_tile_;
    text.token_ids.insert(text.token_ids.begin(), static_cast<size_t>(num_image_features), kPlaceholderTokenId);
    text.label_mask.insert(text.label_mask.begin(), static_cast<size_t>(num_image_features), 0);
    if (!text.label_weights.empty())
      text.label_weights.insert(text.label_weights.begin(), static_cast<size_t>(num_image_features), 0);
    for (int64_t position = 0; position < num_image_features; ++position)
      text.image_token_positions.push_back(position);
    return text;
  }

 private:
  int64_t tokens_per_tile_;
};

std::unique_ptr<ChatEncoder> make_encoder(const Config& config, text::Tokenizer tokenizer,
                                          text::ChatTemplate chat_template) {
  if (config.puts_images_before_text()) {
    return std::make_unique<LeadingImageEncoder>(std::move(tokenizer), std::move(chat_template),
                                                 config.image_tokens_per_tile());
  }
  const int64_t image_token_id = find_token_id(tokenizer, config.get_extra_token("image_token"));
  return std::make_unique<NumberedImageEncoder>(std::move(tokenizer), std::move(chat_template), image_token_id);
}

}  // namespace

std::unique_ptr<Processor> make_processor(const Config& config, const ImageProcessor& images, text::Tokenizer tokenizer,
                                          text::ChatTemplate chat_template, const ProcessorSettings& settings) {
  auto encoder = make_encoder(config, std::move(tokenizer), std::move(chat_template));
  check_vocabulary(encoder->tokenizer(), config.text.vocab_size);
  const int64_t side = config.vision.image_size;
  return std::make_unique<ConversationProcessor>(
      ProcessorParts{
          .encoder = std::move(encoder),
          .readers = {.images = std::make_unique<TileReader>(config, images)},
          .input = {.row = {.height = side, .width = side}, .image_tokens = config.image_tokens_per_tile()},
          .max_positions = config.max_positions,
          .position_description = fmt::format(
              "lm_max_position_embeddings ({}), beyond which nanoVLM scales all positions", config.max_positions)},
      settings);
}

}  // namespace vlmtrain::models::nanovlm
