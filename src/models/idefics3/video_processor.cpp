#include "models/idefics3/video_processor.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>
#include <vector>

#include "models/checkpoints/config_checks.h"
#include "models/idefics3/processor.h"
#include "models/media/frame_sampling.h"
#include "models/processing/preprocessor_config.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/io/json.h"

namespace vlmtrain::models::idefics3 {

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
        "{} makes frames of {} pixels (max_image_size), but config.json's vision tower needs {} (image_size); they "
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
