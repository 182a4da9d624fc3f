#include "models/idefics3/processor.h"

#include <ATen/ops/cat.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <optional>
#include <string_view>

#include "models/idefics3/video_processor.h"
#include "models/media/frame_sampling.h"
#include "models/media/image_tiles.h"
#include "models/processing/conversation_processor.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/models/media_preview.h"
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

namespace {

std::optional<ShrinkRange> get_tile_shrink_range(const ImageProcessorSettings& settings) {
  if (!settings.do_image_splitting) return std::nullopt;
  return make_tile_shrink_range(settings.tile_size);
}

class TileReader final : public ImageReader {
 public:
  TileReader(const ImageProcessor& image_processor, int64_t tokens_per_tile)
      : image_processor_(image_processor), tokens_per_tile_(tokens_per_tile) {}

  MediaLayout lay_out(image::ImageSize size, std::optional<int64_t> max_pixels) const override {
    const TileGrid grid = image_processor_.compute_grid(size, max_pixels);
    return {.text = format_image_text(grid, tokens_per_tile_), .pixel_rows = grid.num_tiles()};
  }
  ImageView compute_view(ImageSize size, std::optional<int64_t> max_pixels) const override {
    const TileGrid grid = image_processor_.compute_grid(size, max_pixels);
    const int64_t side = image_processor_.settings().tile_size;
    if (!grid.is_split()) return make_resized_view(size, {.height = side, .width = side});
    return make_resized_view(size, {.height = grid.rows * side, .width = grid.columns * side});
  }
  at::Tensor preprocess(const at::Tensor& image, std::optional<int64_t> max_pixels) const override {
    return image_processor_.process(image, max_pixels);
  }
  std::vector<MediaPreview> preview(const at::Tensor& rows, const MediaLayout& layout, image::ImageSize size,
                                    std::optional<int64_t> max_pixels) const override {
    const TileGrid grid = image_processor_.compute_grid(size, max_pixels);
    if (!grid.is_split()) return ImageReader::preview(rows, layout, size, max_pixels);
    return preview_cells_and_overview(rows, grid.rows, grid.columns);
  }
  std::optional<ShrinkRange> get_shrink_range() const override {
    return get_tile_shrink_range(image_processor_.settings());
  }

 private:
  ImageProcessor image_processor_;
  int64_t tokens_per_tile_;
};

class FrameReader final : public VideoReader {
 public:
  FrameReader(const VideoSettings& settings, const ImageProcessorSettings& image_settings, int64_t tokens_per_tile)
      : settings_(settings), image_settings_(image_settings), tokens_per_tile_(tokens_per_tile) {}

  void check(const image::VideoInfo& /*info*/) const override {
    check_frame_normalization(image_settings_.normalization, settings_.frame_settings.normalization);
  }
  MediaLayout lay_out(const image::VideoInfo& info, std::optional<int64_t> /*max_pixels*/) const override {
    const VideoText video = make_video_text(settings_, info, tokens_per_tile_);
    return {.text = video.text, .pixel_rows = video.frames, .frames = video.frames};
  }
  at::Tensor preprocess(image::VideoFile& video, std::optional<int64_t> /*max_pixels*/) const override {
    const ImageProcessor frame_processor(settings_.frame_settings);
    std::vector<at::Tensor> tiles;
    video.read_frames(settings_.sample_frame_indices(video.info()),
                      [&](const at::Tensor& frame) { tiles.push_back(frame_processor.process(frame)); });
    return at::cat(tiles);
  }
  // Frames are one tile each and cannot shrink; only a sample's images do.
  std::optional<ShrinkRange> get_shrink_range() const override { return get_tile_shrink_range(image_settings_); }

 private:
  VideoSettings settings_;
  ImageProcessorSettings image_settings_;
  int64_t tokens_per_tile_;
};

}  // namespace

std::unique_ptr<Processor> make_processor(const Config& config, const ImageProcessor& images,
                                          const std::optional<VideoSettings>& videos, text::Tokenizer tokenizer,
                                          text::ChatTemplate chat_template, const ProcessorSettings& settings) {
  auto encoder = std::make_unique<ChatEncoder>(
      std::move(tokenizer), std::move(chat_template),
      ChatEncoderSettings{.image_token_id = config.image_token_id, .adds_special_tokens = false});
  check_token_id(encoder->tokenizer(), text::kImagePlaceholder, "image_token_id", config.image_token_id);
  check_vocabulary(encoder->tokenizer(), config.text.vocab_size);
  const int64_t tokens_per_tile = config.image_tokens_per_tile(), side = images.settings().tile_size;
  MediaReaders readers{.images = std::make_unique<TileReader>(images, tokens_per_tile)};
  if (videos) readers.videos = std::make_unique<FrameReader>(*videos, images.settings(), tokens_per_tile);
  return std::make_unique<ConversationProcessor>(
      ProcessorParts{.encoder = std::move(encoder),
                     .readers = std::move(readers),
                     .input = {.row = {.height = side, .width = side}, .image_tokens = tokens_per_tile}},
      settings);
}

}  // namespace vlmtrain::models::idefics3
