#include "models/idefics3/processor.h"

#include <ATen/ops/cat.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <string_view>
#include <vector>

#include "models/checkpoints/config_checks.h"
#include "models/media/medium.h"
#include "models/processing/conversation_processor.h"
#include "models/processing/preprocessor_config.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/models/media_preview.h"
#include "vlmtrain/text/chat_template.h"
#include "vlmtrain/text/tokenizer.h"

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

namespace {

constexpr int64_t kMaxVideoFrames = 999;  // limit of spell_number()
constexpr NumberRange kFpsRange{0, 1e6};  // 1e6 rejects only damaged files

/// Frame sampling of a checkpoint's processor file.
struct FrameSampling {
  double fps;
  int64_t max_frames;
};

/// Reads section video_sampling (SmolVLM2's files), else the top-level keys of transformers 5.
/// Returns nothing if both are missing.
std::optional<FrameSampling> read_frame_sampling(const PreprocessorConfig& file) {
  const auto parse_sampling = [&](const nlohmann::json& settings_json, const char* max_frames_key) -> FrameSampling {
    return {.fps = read_number(settings_json, "fps", 1, kFpsRange, file.name()),
            .max_frames = read_size(settings_json, max_frames_key, 64, kMaxVideoFrames, file.name())};
  };
  const nlohmann::json* const section = file.find("video_sampling");
  if (section != nullptr && section->is_object()) return parse_sampling(*section, "max_frames");
  const nlohmann::json *const frames = file.find("num_frames"), *const fps = file.find("fps");
  if (frames == nullptr || fps == nullptr) return std::nullopt;
  return parse_sampling({{"num_frames", *frames}, {"fps", *fps}}, "num_frames");
}

/// Returns np.linspace(first, last, count, dtype=int) without duplicates.
std::vector<int64_t> linspace(int64_t first, int64_t last, int64_t count) {
  std::vector<int64_t> indices;
  const double step = static_cast<double>(last - first) / static_cast<double>(std::max<int64_t>(count - 1, 1));
  for (int64_t i = 0; i < count; ++i) {
    const bool is_last = i == count - 1 && count > 1;
    indices.push_back(
        is_last ? last : static_cast<int64_t>(std::floor(static_cast<double>(i) * step + static_cast<double>(first))));
  }
  indices.erase(std::unique(indices.begin(), indices.end()), indices.end());
  return indices;
}

constexpr std::array<std::string_view, 20> kNumberWordsBelowTwenty{
    "",    "one",    "two",    "three",    "four",     "five",    "six",     "seven",     "eight",    "nine",
    "ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"};
constexpr std::array<std::string_view, 10> kTensWords{"",      "",      "twenty",  "thirty", "forty",
                                                      "fifty", "sixty", "seventy", "eighty", "ninety"};

std::string spell_below_hundred(size_t number) {
  if (number < kNumberWordsBelowTwenty.size()) return std::string(kNumberWordsBelowTwenty.at(number));
  const std::string_view tens_word = kTensWords.at(number / 10), ones_word = kNumberWordsBelowTwenty.at(number % 10);
  return ones_word.empty() ? std::string(tens_word) : fmt::format("{}-{}", tens_word, ones_word);
}

/// Returns Python's str(timedelta(seconds=…)).
std::string format_timedelta(int64_t seconds) {
  constexpr int64_t kSecondsPerHour = 3600, kSecondsPerDay = 24 * kSecondsPerHour;
  const int64_t days = seconds / kSecondsPerDay;
  const std::string day_text = days == 0 ? "" : fmt::format("{} day{}, ", days, days == 1 ? "" : "s");
  return fmt::format("{}{}:{:02}:{:02}", day_text, seconds % kSecondsPerDay / kSecondsPerHour,
                     seconds % kSecondsPerHour / 60, seconds % 60);
}

}  // namespace

std::optional<VideoSettings> VideoSettings::find(const std::filesystem::path& folder, int64_t tile_size,
                                                 const ProcessorSettings& settings) {
  const auto file = PreprocessorConfig::find_for_videos(folder);
  if (!file) return std::nullopt;
  const auto sampling = read_frame_sampling(*file);
  if (!sampling) return std::nullopt;
  VideoSettings result{.frame_settings = read_frame_settings(*file)};
  if (result.frame_settings.tile_size != tile_size) {
    throw data_error(
        "{}: makes frames of {} pixels (max_image_size), but config.json's vision tower needs {} (image_size); they "
        "must be equal",
        file->name(), result.frame_settings.tile_size, tile_size);
  }
  result.fps = std::min(sampling->fps, settings.video_fps);
  result.max_frames = std::min(sampling->max_frames, settings.video_max_frames);
  result.max_listed_frames = std::min(settings.video_max_frames, kMaxVideoFrames);
  result.fallback_fps = settings.video_fps;
  return result;
}

std::vector<int64_t> VideoSettings::sample_frame_indices(const image::VideoInfo& video) const {
  if (auto all_frames = list_preselected_frames(video, max_listed_frames)) return *std::move(all_frames);
  if (video.is_frame_list) return linspace(0, video.num_frames - 1, max_listed_frames);
  const double source_fps = get_fps(video);
  const double duration_seconds = static_cast<double>(video.num_frames) / source_fps;
  // Python's round() rounds half to even.
  const double num_target_frames = std::min(std::nearbyint(fps * duration_seconds), static_cast<double>(max_frames));
  const int64_t count = std::max<int64_t>(static_cast<int64_t>(num_target_frames), 1);
  int64_t first = 0, last = video.num_frames - 1;
  // SmolVLM's processor skips the first and last second of long videos. It compares the duration
  // with max_frames · fps, which equals max_frames seconds at SmolVLM2's rate of one frame per
  // second.
  constexpr double kSkippedEdgeSeconds = 1;
  if (duration_seconds - 2 * kSkippedEdgeSeconds > static_cast<double>(max_frames) * fps) {
    first = static_cast<int64_t>(kSkippedEdgeSeconds * source_fps);
    last =
        std::min(static_cast<int64_t>(static_cast<double>(video.num_frames) - kSkippedEdgeSeconds * source_fps), last);
  }
  if (first >= last) {
    first = 0;
    last = video.num_frames - 1;
  }
  return linspace(first, last, count);
}

std::string spell_number(int64_t number) {
  VLMTRAIN_CHECK(number >= 1 && number <= 999, "{} in words", number);
  const auto hundreds = static_cast<size_t>(number / 100), remainder = static_cast<size_t>(number % 100);
  if (hundreds == 0) return spell_below_hundred(remainder);
  const std::string hundreds_text = fmt::format("{} hundred", kNumberWordsBelowTwenty.at(hundreds));
  return remainder == 0 ? hundreds_text : fmt::format("{} and {}", hundreds_text, spell_below_hundred(remainder));
}

std::string format_video_text(std::span<const double> seconds, double duration_seconds, int64_t image_tokens_per_tile) {
  const std::string frame_text = format_image_text({}, image_tokens_per_tile);
  std::string text =
      fmt::format("You are provided the following series of {} frames from a {} [H:MM:SS] video.\n",
                  spell_number(std::ssize(seconds)), format_timedelta(static_cast<int64_t>(duration_seconds)));
  for (const double time : seconds) {
    const auto truncated = static_cast<int64_t>(time);
    text += fmt::format("\nFrame from {:02}:{:02}:{}", truncated / 60, truncated % 60, frame_text);
  }
  return text + "\n\n";
}

VideoText make_video_text(const VideoSettings& settings, const image::VideoInfo& video, int64_t image_tokens_per_tile) {
  const double fps = settings.get_fps(video);
  std::vector<double> seconds;
  for (const int64_t frame : settings.sample_frame_indices(video)) seconds.push_back(static_cast<double>(frame) / fps);
  return {.text = format_video_text(seconds, static_cast<double>(video.num_frames) / fps, image_tokens_per_tile),
          .frames = std::ssize(seconds)};
}

}  // namespace vlmtrain::models::idefics3
