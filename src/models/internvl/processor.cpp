#include "models/internvl/processor.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>

#include "models/media/frame_sampling.h"
#include "models/media/image_tiles.h"
#include "models/processing/conversation_processor.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/models/media_preview.h"
#include "vlmtrain/text/read_tokenizer.h"

namespace vlmtrain::models::internvl {

namespace {

/// Throws UserError for a tokenizer that does not match `config`. Tokenizers of InternVL 3 in
/// transformers' layout have one token more than the embedding has rows. It is the video
/// placeholder, which is replaced by text before tokenization.
void check_tokenizer(const text::Tokenizer& tokenizer, const Config& config) {
  check_token_id(tokenizer, kImageToken, "image_token_id", config.image_token_id);
  const int64_t rows = config.text.vocab_size;
  const bool has_video_placeholder =
      tokenizer.vocab_size() == rows + 1 && tokenizer.token_to_id(text::kVideoPlaceholder) == rows;
  if (!has_video_placeholder) check_vocabulary(tokenizer, rows);
}

}  // namespace

std::string format_image_text(int64_t tiles, int64_t image_tokens_per_tile) {
  std::string text = "<img>";
  for (int64_t i = 0; i < tiles * image_tokens_per_tile; ++i) text += kImageToken;
  return text + "</img>";
}

std::string format_video_text(int64_t frames, int64_t image_tokens_per_tile) {
  const std::string frame = format_image_text(1, image_tokens_per_tile);
  std::string text;
  for (int64_t i = 1; i <= frames; ++i) text += fmt::format("{}Frame{}: {}", i == 1 ? "" : "\n", i, frame);
  return text;
}

int64_t count_video_text_tokens(int64_t frames, int64_t image_tokens_per_tile, const std::filesystem::path& folder) {
  const auto tokenizer = folder / "tokenizer.json";
  if (std::filesystem::exists(tokenizer)) {
    return std::ssize(text::read_tokenizer(folder).encode(format_video_text(frames, image_tokens_per_tile)).ids);
  }
  constexpr int64_t kNumFrameMarkerTokens = 5;  // "Frame", ":", " ", "<img>", "</img>"
  int64_t tokens = frames * (kNumFrameMarkerTokens + image_tokens_per_tile) + frames - 1;
  for (int64_t i = 1; i <= frames; ++i) tokens += std::ssize(std::to_string(i));
  return tokens;
}

namespace {

class TileReader final : public ImageReader {
 public:
  TileReader(const ImageProcessor& image_processor, int64_t tokens_per_tile)
      : image_processor_(image_processor), tokens_per_tile_(tokens_per_tile) {}

  MediaLayout lay_out(image::ImageSize size, std::optional<int64_t> max_pixels) const override {
    const int64_t tiles = image_processor_.compute_grid(size, max_pixels).num_tiles();
    return {.text = format_image_text(tiles, tokens_per_tile_), .pixel_rows = tiles};
  }
  ImageView compute_view(image::ImageSize size, std::optional<int64_t> max_pixels) const override {
    const TileGrid grid = image_processor_.compute_grid(size, max_pixels);
    const int64_t side = image_processor_.tile_settings().side;
    return make_resized_view(size, {.height = grid.rows * side, .width = grid.columns * side});
  }
  at::Tensor preprocess(const at::Tensor& image, std::optional<int64_t> max_pixels) const override {
    return image_processor_.process(image, max_pixels);
  }
  std::vector<MediaPreview> preview(const at::Tensor& rows, const MediaLayout& layout, image::ImageSize size,
                                    std::optional<int64_t> max_pixels) const override {
    const TileGrid grid = image_processor_.compute_grid(size, max_pixels);
    if (grid.num_cells() == 1) return ImageReader::preview(rows, layout, size, max_pixels);
    return preview_cells_and_overview(rows, grid.rows, grid.columns);
  }
  std::optional<int64_t> count_tokens(image::ImageSize size, std::optional<int64_t> max_pixels) const override {
    constexpr int64_t kNumMarkerTokens = 2;  // <img> and </img>
    return image_processor_.compute_grid(size, max_pixels).num_tiles() * tokens_per_tile_ + kNumMarkerTokens;
  }
  std::optional<ShrinkRange> get_shrink_range() const override {
    return make_tile_shrink_range(image_processor_.tile_settings().side);
  }

 private:
  ImageProcessor image_processor_;
  int64_t tokens_per_tile_;
};

class FrameReader final : public VideoReader {
 public:
  FrameReader(const VideoSettings& settings, const TileSettings& image_settings, int64_t tokens_per_tile)
      : settings_(settings), image_settings_(image_settings), tokens_per_tile_(tokens_per_tile) {}

  void check(const image::VideoInfo& /*info*/) const override {
    check_frame_normalization(image_settings_.normalization, settings_.tile.normalization);
  }
  MediaLayout lay_out(const image::VideoInfo& info, std::optional<int64_t> /*max_pixels*/) const override {
    const auto frames = std::ssize(settings_.sample_frame_indices(info));
    return {.text = format_video_text(frames, tokens_per_tile_), .pixel_rows = frames, .frames = frames};
  }
  at::Tensor preprocess(image::VideoFile& video, std::optional<int64_t> /*max_pixels*/) const override {
    const auto frames = settings_.sample_frame_indices(video.info());
    const int64_t side = settings_.tile.side;
    at::Tensor tiles = at::empty({std::ssize(frames), 3, side, side}, at::kByte);
    int64_t tile_index = 0;
    video.read_frames(frames, [&](const at::Tensor& frame) {
      tiles.select(0, tile_index++).copy_(image::resize_image(frame, side, side, settings_.tile.filter));
    });
    return tiles;
  }
  // Frames are one tile each and cannot shrink; only a sample's images do.
  std::optional<ShrinkRange> get_shrink_range() const override { return make_tile_shrink_range(image_settings_.side); }

 private:
  VideoSettings settings_;
  TileSettings image_settings_;
  int64_t tokens_per_tile_;
};

/// Rejects texts with tokens that the embedding lacks, such as a video placeholder of the tokenizer.
class Encoder final : public ChatEncoder {
 public:
  Encoder(const Config& config, text::Tokenizer tokenizer, text::ChatTemplate chat_template)
      : ChatEncoder(std::move(tokenizer), std::move(chat_template), {.image_token_id = config.image_token_id}),
        vocab_size_(config.text.vocab_size) {}

  EncodedChat encode(const text::RenderedChat& chat, std::span<const MediaLayout> media) const override {
    EncodedChat encoded_chat = ChatEncoder::encode(chat, media);
    const auto unknown_token_it =
        std::ranges::find_if(encoded_chat.token_ids, [&](int64_t id) { return id >= vocab_size_; });
    if (unknown_token_it != encoded_chat.token_ids.end()) {
      throw data::SampleError("tokens without an embedding",
                              fmt::format("the text has the token {}, which is not a video placeholder here and is not "
                                          "in the model's vocabulary; remove it from the conversation",
                                          tokenizer().id_to_token(*unknown_token_it)));
    }
    return encoded_chat;
  }

 private:
  int64_t vocab_size_;
};

}  // namespace

std::unique_ptr<Processor> make_processor(const Config& config, const ImageProcessor& images,
                                          const VideoSettings& videos, text::Tokenizer tokenizer,
                                          text::ChatTemplate chat_template, const ProcessorSettings& settings) {
  auto encoder = std::make_unique<Encoder>(config, std::move(tokenizer), std::move(chat_template));
  check_tokenizer(encoder->tokenizer(), config);
  const int64_t tokens_per_tile = config.image_tokens_per_tile(), side = images.tile_settings().side;
  ProcessorParts parts{
      .encoder = std::move(encoder),
      .readers = {.images = std::make_unique<TileReader>(images, tokens_per_tile),
                  .videos = std::make_unique<FrameReader>(videos, images.tile_settings(), tokens_per_tile)},
      .input = {.row = {.height = side, .width = side}, .image_tokens = tokens_per_tile},
      .boxes = {.notation = CoordinateNotation::kNormalized1000,
                .box = "<box>[[{x1}, {y1}, {x2}, {y2}]]</box>",
                .point = "<box>[[{x1}, {y1}]]</box>",
                .name = "<ref>{name}</ref>"}};
  if (config.is_hard_limit) {
    parts.max_positions = config.text.max_positions;
    parts.position_description = fmt::format(
        "the model's positions (max_position_embeddings {}), beyond which its dynamic RoPE scaling "
        "changes all of them",
        config.text.max_positions);
  }
  return std::make_unique<ConversationProcessor>(std::move(parts), settings);
}

}  // namespace vlmtrain::models::internvl
