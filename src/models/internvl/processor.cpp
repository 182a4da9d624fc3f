#include "models/internvl/processor.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>

#include "models/processing/frame_sampling.h"
#include "models/processing/image_tiles.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/text/read_tokenizer.h"

namespace vlmtrain::models::internvl {

namespace {

/// Throws UserError for a tokenizer that does not match `config`. Tokenizers of InternVL 3 in
/// transformers' layout have one token more than the embedding has rows. It is the video
/// placeholder, which is replaced by text before tokenization.
void check_tokenizer(const text::Tokenizer& tokenizer, const Config& config) {
  const int64_t image_token = find_token_id(tokenizer, kImageToken);
  if (image_token != config.image_token_id) {
    throw data_error("config.json's image_token_id is {}, but tokenizer.json gives {} the id {}", config.image_token_id,
                     kImageToken, image_token);
  }
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

Processor::Processor(Config config, ImageProcessor images, VideoSettings videos, text::Tokenizer tokenizer,
                     text::ChatTemplate chat_template, const ProcessorSettings& settings)
    : ConversationProcessor(std::move(tokenizer), std::move(chat_template), settings,
                            {{.height = images.tile_settings().side, .width = images.tile_settings().side},
                             config.image_tokens_per_tile()}),
      config_(std::move(config)),
      image_processor_(images),
      video_settings_(videos) {
  check_tokenizer(this->tokenizer(), config_);
}

MediaLayout Processor::lay_out_image(image::ImageSize size, std::optional<int64_t> max_pixels) const {
  const int64_t tiles = image_processor_.compute_grid(size, max_pixels).num_tiles();
  return {.text = format_image_text(tiles, config_.image_tokens_per_tile()), .pixel_rows = tiles};
}

at::Tensor Processor::preprocess_image(const at::Tensor& image, std::optional<int64_t> max_pixels) const {
  return image_processor_.process(image, max_pixels);
}

std::vector<MediaPreview> Processor::preview_images(const at::Tensor& rows, const MediaLayout& layout,
                                                    image::ImageSize size, std::optional<int64_t> max_pixels) const {
  if (layout.kind == data::MediaKind::kVideo) {
    auto frames = ConversationProcessor::preview_images(rows, layout, size, max_pixels);
    for (size_t i = 0; i < frames.size(); ++i) frames[i].frame_index = static_cast<int64_t>(i);
    return frames;
  }
  const TileGrid grid = image_processor_.compute_grid(size, max_pixels);
  if (grid.num_cells() == 1) return ConversationProcessor::preview_images(rows, layout, size, max_pixels);
  return {make_tiled_preview(rows.narrow(0, 0, grid.num_cells()), grid.rows, grid.columns),
          make_overview_preview(rows.select(0, grid.num_cells()))};
}

int64_t Processor::count_tokens(image::ImageSize size, std::optional<int64_t> max_pixels) const {
  constexpr int64_t kNumMarkerTokens = 2;  // <img> and </img>
  return image_processor_.compute_grid(size, max_pixels).num_tiles() * config_.image_tokens_per_tile() +
         kNumMarkerTokens;
}

std::optional<ShrinkRange> Processor::get_shrink_range(data::MediaKind /*kind*/) const {
  // Video frames are one tile each and cannot shrink; only a sample's images do.
  const int64_t tile_pixels = image_processor_.tile_settings().side * image_processor_.tile_settings().side;
  return ShrinkRange{.min_pixels = tile_pixels, .step = tile_pixels};
}

int64_t Processor::max_positions() const {
  return config_.is_hard_limit ? config_.text.max_positions : models::Processor::max_positions();
}

std::string Processor::describe_position_overflow(const std::string& id, int64_t tokens) const {
  return fmt::format(
      "sample {} has {} tokens, more than the model's positions (max_position_embeddings {}), beyond which its dynamic "
      "RoPE scaling changes all of them; set data.max_length to that or less, or shrink the images with "
      "data.image_max_pixels",
      id, tokens, config_.text.max_positions);
}

void Processor::check_video(const image::VideoInfo& /*info*/) const {
  check_frame_normalization(image_processor_.tile_settings().normalization, video_settings_.tile.normalization);
}

MediaLayout Processor::lay_out_video(const image::VideoInfo& info, std::optional<int64_t> /*max_pixels*/) const {
  const auto frames = std::ssize(video_settings_.sample_frame_indices(info));
  return {.text = format_video_text(frames, config_.image_tokens_per_tile()), .pixel_rows = frames, .frames = frames};
}

at::Tensor Processor::preprocess_video(image::VideoFile& video, std::optional<int64_t> /*max_pixels*/) const {
  const auto frames = video_settings_.sample_frame_indices(video.info());
  const int64_t side = video_settings_.tile.side;
  at::Tensor tiles = at::empty({std::ssize(frames), 3, side, side}, at::kByte);
  int64_t tile_index = 0;
  video.read_frames(frames, [&](const at::Tensor& frame) {
    tiles.select(0, tile_index++).copy_(image::resize_image(frame, side, side, video_settings_.tile.filter));
  });
  return tiles;
}

int64_t Processor::count_video_tokens(const image::VideoInfo& info, std::optional<int64_t> max_pixels) const {
  return std::ssize(tokenizer().encode(lay_out_video(info, max_pixels).text).ids);
}

EncodedChat Processor::encode(const text::RenderedChat& chat, std::span<const MediaLayout> images) const {
  EncodedChat encoded_chat = encode_with_media(tokenizer(), chat, images, config_.image_token_id,
                                               /*add_special_tokens=*/!chat_template().writes_bos_token());
  const auto unknown_token_it =
      std::ranges::find_if(encoded_chat.token_ids, [&](int64_t id) { return id >= config_.text.vocab_size; });
  if (unknown_token_it != encoded_chat.token_ids.end()) {
    throw data::SampleError("tokens without an embedding",
                            fmt::format("the text has the token {}, which is not a video placeholder here and is not "
                                        "in the model's vocabulary; remove it from the conversation",
                                        tokenizer().id_to_token(*unknown_token_it)));
  }
  return encoded_chat;
}

}  // namespace vlmtrain::models::internvl
