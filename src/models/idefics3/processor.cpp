#include "models/idefics3/processor.h"

#include <ATen/ops/cat.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <optional>
#include <string_view>

#include "models/idefics3/video_processor.h"
#include "models/processing/frame_sampling.h"
#include "models/processing/image_tiles.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/text/chat_template.h"
#include "vlmtrain/text/read_tokenizer.h"

namespace vlmtrain::models::idefics3 {

namespace {

constexpr std::string_view kFakeImageToken = "<fake_token_around_image>";
constexpr std::string_view kGlobalImageToken = "<global-img>";

std::string repeat_text(std::string_view text, int64_t times) {
  std::string result;
  for (int64_t i = 0; i < times; ++i) result += text;
  return result;
}

bool is_ascii_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/// Returns the number of words, digits and punctuation marks. Spaces are part of the next piece.
int64_t count_words_and_punctuation(std::string_view text) {
  int64_t num_pieces = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != ' ') num_pieces += i == 0 || !is_ascii_letter(text[i]) || !is_ascii_letter(text[i - 1]);
  }
  return num_pieces;
}

/// Estimates the number of tokens of a text. `added_tokens` is the content of added_tokens.json,
/// which lists the markers that are tokens. Without it, each marker is one token.
int64_t count_tokens_without_tokenizer(std::string_view text, const std::optional<nlohmann::json>& added_tokens) {
  int64_t tokens = 0;
  while (!text.empty()) {
    if (text.front() == '\n') {
      text.remove_prefix(std::min(text.find_first_not_of('\n'), text.size()));
      ++tokens;
      continue;
    }
    if (text.front() != '<') {
      const std::string_view plain_text = text.substr(0, text.find_first_of("<\n"));
      tokens += count_words_and_punctuation(plain_text);
      text.remove_prefix(plain_text.size());
      continue;
    }
    const std::string_view marker = text.substr(0, text.find('>') + 1);
    const bool is_added_token = !added_tokens || marker == text::kImagePlaceholder || added_tokens->contains(marker);
    tokens += is_added_token ? 1 : count_words_and_punctuation(marker);
    text.remove_prefix(marker.size());
  }
  return tokens;
}

}  // namespace

std::string format_image_text(TileGrid grid, int64_t image_tokens_per_tile) {
  const std::string tile_text = repeat_text(text::kImagePlaceholder, image_tokens_per_tile);
  std::string text;
  for (int64_t row = 1; row <= grid.rows; ++row) {
    for (int64_t column = 1; column <= grid.columns; ++column) {
      text += fmt::format("{}<row_{}_col_{}>{}", kFakeImageToken, row, column, tile_text);
    }
    text += '\n';
  }
  if (grid.is_split()) text += '\n';
  return text + fmt::format("{}{}{}{}", kFakeImageToken, kGlobalImageToken, tile_text, kFakeImageToken);
}

int64_t count_tokens(std::string_view text, const std::filesystem::path& folder) {
  const auto tokenizer = folder / "tokenizer.json";
  if (std::filesystem::exists(tokenizer)) return std::ssize(text::read_tokenizer(folder).encode(text).ids);
  const auto path = folder / "added_tokens.json";
  std::optional<nlohmann::json> added_tokens;
  if (std::filesystem::exists(path)) {
    added_tokens = io::read_json(path);
    if (!added_tokens->is_object()) throw data_error("{}: not a JSON object of tokens and ids", path.string());
  }
  return count_tokens_without_tokenizer(text, added_tokens);
}

int64_t count_image_text_tokens(TileGrid grid, int64_t image_tokens_per_tile, const std::filesystem::path& folder) {
  return count_tokens(format_image_text(grid, image_tokens_per_tile), folder);
}

Processor::Processor(Config config, ImageProcessor images, std::optional<VideoSettings> videos,
                     text::Tokenizer tokenizer, text::ChatTemplate chat_template, ProcessorSettings settings)
    : ConversationProcessor(std::move(tokenizer), std::move(chat_template), std::move(settings),
                            {{.height = images.settings().tile_size, .width = images.settings().tile_size},
                             config.image_tokens_per_tile()}),
      config_(std::move(config)),
      image_processor_(images),
      video_settings_(videos) {
  const int64_t image_token_id = find_token_id(this->tokenizer(), text::kImagePlaceholder);
  if (image_token_id != config_.image_token_id) {
    throw data_error("config.json's image_token_id is {}, but tokenizer.json gives {} the id {}",
                     config_.image_token_id, text::kImagePlaceholder, image_token_id);
  }
  check_vocabulary(this->tokenizer(), config_.text.vocab_size);
}

MediaLayout Processor::lay_out_image(image::ImageSize size, std::optional<int64_t> max_pixels) const {
  const TileGrid grid = image_processor_.compute_grid(size, max_pixels);
  return {format_image_text(grid, config_.image_tokens_per_tile()), grid.num_tiles()};
}

at::Tensor Processor::preprocess_image(const at::Tensor& image, std::optional<int64_t> max_pixels) const {
  return image_processor_.process(image, max_pixels).tiles;
}

std::vector<MediaPreview> Processor::preview_images(const at::Tensor& rows, const MediaLayout& layout,
                                                    image::ImageSize size, std::optional<int64_t> max_pixels) const {
  if (layout.kind == data::MediaKind::kVideo) {
    auto frames = ConversationProcessor::preview_images(rows, layout, size, max_pixels);
    for (size_t i = 0; i < frames.size(); ++i) frames[i].frame_index = static_cast<int64_t>(i);
    return frames;
  }
  const TileGrid grid = image_processor_.compute_grid(size, max_pixels);
  if (!grid.is_split()) return ConversationProcessor::preview_images(rows, layout, size, max_pixels);
  const int64_t num_cells = grid.num_tiles() - 1;
  return {make_tiled_preview(rows.narrow(0, 0, num_cells), grid.rows, grid.columns),
          make_overview_preview(rows.select(0, num_cells))};
}

int64_t Processor::count_tokens(image::ImageSize size, std::optional<int64_t> max_pixels) const {
  return std::ssize(tokenizer().encode(lay_out_image(size, max_pixels).text).ids);
}

std::optional<ShrinkRange> Processor::get_shrink_range(data::MediaKind /*kind*/) const {
  if (!image_processor_.settings().do_image_splitting) return std::nullopt;
  const int64_t tile_pixels = image_processor_.settings().tile_size * image_processor_.settings().tile_size;
  return ShrinkRange{.min_pixels = tile_pixels, .step = tile_pixels};
}

void Processor::check_video(const image::VideoInfo& /*info*/) const {
  check_frame_normalization(image_processor_.settings().normalization, video_settings_->frame_settings.normalization);
}

MediaLayout Processor::lay_out_video(const image::VideoInfo& info, std::optional<int64_t> /*max_pixels*/) const {
  const VideoText video = make_video_text(*video_settings_, info, config_.image_tokens_per_tile());
  return {.text = video.text, .pixel_rows = video.frames, .frames = video.frames};
}

at::Tensor Processor::preprocess_video(image::VideoFile& video, std::optional<int64_t> /*max_pixels*/) const {
  const ImageProcessor frame_processor(video_settings_->frame_settings);
  std::vector<at::Tensor> tiles;
  video.read_frames(video_settings_->sample_frame_indices(video.info()),
                    [&](const at::Tensor& frame) { tiles.push_back(frame_processor.process(frame).tiles); });
  return at::cat(tiles);
}

int64_t Processor::count_video_tokens(const image::VideoInfo& info, std::optional<int64_t> max_pixels) const {
  return std::ssize(tokenizer().encode(lay_out_video(info, max_pixels).text).ids);
}

EncodedChat Processor::encode(const text::RenderedChat& chat, std::span<const MediaLayout> images) const {
  return encode_with_media(tokenizer(), chat, images, config_.image_token_id,
                           /*add_special_tokens=*/false);
}

}  // namespace vlmtrain::models::idefics3
