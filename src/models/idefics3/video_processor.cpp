#include "models/idefics3/video_processor.h"

#include <algorithm>
#include <cmath>

#include "models/checkpoints/size_limits.h"
#include "models/processing/listed_frames.h"
#include "models/processing/preprocessor_config.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/io/json.h"

namespace vlmtrain::models::idefics3 {

namespace {

constexpr int64_t kMaxVideoFrames = 999;  // that image_text.h has words for
constexpr NumberRange kFpsRange{0, 1e6};

struct Sampling {
  double fps;
  int64_t max_frames;
};

/// Section video_sampling, as SmolVLM2's files have it, or the keys that transformers 5 writes beside it.
std::optional<Sampling> read_sampling(const PreprocessorConfig& file) {
  const auto parse = [&](const nlohmann::json& from, const char* max_frames_key) -> Sampling {
    return {.fps = read_number(from, "fps", 1, kFpsRange, file.name()),
            .max_frames = read_size(from, max_frames_key, 64, kMaxVideoFrames, file.name())};
  };
  const nlohmann::json* const section = file.find("video_sampling");
  if (section != nullptr && section->is_object()) return parse(*section, "max_frames");
  const nlohmann::json *const frames = file.find("num_frames"), *const fps = file.find("fps");
  if (frames == nullptr || fps == nullptr) return std::nullopt;
  return parse({{"num_frames", *frames}, {"fps", *fps}}, "num_frames");
}

/// np.linspace(first, last, count, dtype=int) without what comes twice.
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

}  // namespace

std::optional<VideoSettings> VideoSettings::find(const std::filesystem::path& folder, int64_t tile_size,
                                                 const ProcessorSettings& settings) {
  const auto file = PreprocessorConfig::find_for_videos(folder);
  if (!file) return std::nullopt;
  const auto sampling = read_sampling(*file);
  if (!sampling) return std::nullopt;
  VideoSettings result{.frame = read_frame_settings(*file)};
  if (result.frame.tile_size != tile_size) {
    throw data_error(
        "{} makes frames of {} pixels (max_image_size) and config.json's vision tower takes {} (image_size); they must "
        "be equal",
        file->name(), result.frame.tile_size, tile_size);
  }
  result.fps = std::min(sampling->fps, settings.video_fps);
  result.max_frames = std::min(sampling->max_frames, settings.video_max_frames);
  result.max_listed_frames = std::min(settings.video_max_frames, kMaxVideoFrames);
  result.fallback_fps = settings.video_fps;
  return result;
}

std::vector<int64_t> VideoSettings::sample(const image::VideoInfo& video) const {
  if (auto all = list_all_frames(video, max_listed_frames)) return *std::move(all);
  if (video.is_frame_list) return linspace(0, video.frames - 1, max_listed_frames);
  const double source_fps = get_fps(video);
  const double seconds = static_cast<double>(video.frames) / source_fps;
  // Python's round(): halves to the even.
  const double target_frames = std::min(std::nearbyint(fps * seconds), static_cast<double>(max_frames));
  const int64_t count = std::max<int64_t>(static_cast<int64_t>(target_frames), 1);
  int64_t first = 0, last = video.frames - 1;
  constexpr double kSkippedSeconds = 1;
  if (seconds - 2 * kSkippedSeconds > static_cast<double>(max_frames) * fps) {
    first = static_cast<int64_t>(kSkippedSeconds * source_fps);
    last = std::min(static_cast<int64_t>(static_cast<double>(video.frames) - kSkippedSeconds * source_fps), last);
  }
  if (first >= last) {
    first = 0;
    last = video.frames - 1;
  }
  return linspace(first, last, count);
}

}  // namespace vlmtrain::models::idefics3
