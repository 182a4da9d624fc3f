#include "models/gemma4/video_processor.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "models/checkpoints/config_checks.h"
#include "models/media/medium.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/text_format.h"

namespace vlmtrain::models::gemma4 {

namespace {

/// Returns the settings of the video processor; empty if the checkpoint has none.
PreprocessorConfig find_video_config(const std::filesystem::path& folder) {
  // find_for_videos() would return the image settings, whose budget does not apply to frames.
  if (find_settings_copies(folder, MediaRole::kVideos).empty()) {
    return {nlohmann::json::object(), (folder / "processor_config.json").string()};
  }
  return *PreprocessorConfig::find_for_videos(folder);
}

void check_processor_type(const PreprocessorConfig& file, std::string_view type) {
  const auto actual = file.value<std::string>("video_processor_type", std::string(type));
  if (actual == type) return;
  throw config_error("{}: video_processor_type is {}, but this model needs {}", file.name(), make_excerpt(actual),
                     type);
}

}  // namespace

std::string_view get_video_processor_type(const PatchShape& shape) {
  return shape.merges_patches ? "Gemma4UnifiedVideoProcessor" : "Gemma4VideoProcessor";
}

VideoSettings VideoSettings::read(const std::filesystem::path& folder, const PatchShape& shape,
                                  const ProcessorSettings& settings) {
  const PreprocessorConfig file = find_video_config(folder);
  check_processor_type(file, get_video_processor_type(shape));
  std::set<std::string_view> supported_keys = get_pixel_config_keys();
  supported_keys.insert({// read here
                         "num_frames", "fps", "video_processor_type",
                         // without effect: video files are always sampled
                         "do_sample_frames", "return_metadata", "video_metadata"});
  file.reject_other_keys(supported_keys);
  check_max_pixels(settings.image_max_pixels, shape);
  VideoSettings result;
  result.pixels = read_pixel_settings(file, result.pixels, shape);
  result.pixels.max_tokens = limit_token_budget(result.pixels.max_tokens, settings.image_max_pixels, shape);
  result.sampling_fps = settings.video_fps;
  result.max_frames = settings.video_max_frames;
  result.config_name = file.name();
  if (file.is_null("num_frames")) {
    result.num_frames = std::nullopt;
  } else {
    result.num_frames = file.value("num_frames", *result.num_frames);
    check_size(*result.num_frames, "num_frames", image::kMaxVideoFrames, file.name());
  }
  result.has_fps_conflict = result.num_frames.has_value() && file.find("fps") != nullptr;
  return result;
}

double VideoSettings::get_frame_rate(const image::VideoInfo& video) const {
  constexpr double kFallbackFrameRate = 24;  // of Gemma4Processor
  if (video.fps > 0) return video.fps;
  return video.is_frame_list || video.is_frame_folder ? sampling_fps : kFallbackFrameRate;
}

std::vector<int64_t> VideoSettings::select_frames(const image::VideoInfo& video) const {
  if (auto all_frames = list_preselected_frames(video, max_frames)) return *std::move(all_frames);
  int64_t count = max_frames;
  if (!video.is_frame_list) {
    reject_fps_conflict(*this);
    // The cast rounds toward zero, as int() in transformers.
    const double sampled_frames = static_cast<double>(video.num_frames) / get_frame_rate(video) * sampling_fps;
    count = num_frames.value_or(
        static_cast<int64_t>(std::clamp(sampled_frames, 1.0, static_cast<double>(image::kMaxVideoFrames))));
  }
  count = std::min({count, max_frames, video.num_frames});
  std::vector<int64_t> frame_indices;
  frame_indices.reserve(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) frame_indices.push_back(i * video.num_frames / count);
  return frame_indices;
}

void reject_fps_conflict(const VideoSettings& settings) {
  if (!settings.has_fps_conflict) return;
  throw data_error(
      "{}: has both num_frames ({}) and fps for videos, but transformers supports only one; set one of them to null",
      settings.config_name, settings.num_frames.value_or(0));
}

void write_frame_sampling(nlohmann::ordered_json& file, const VideoSettings& settings) {
  file["do_sample_frames"] = true;
  if (settings.num_frames) {
    file["num_frames"] = std::min(*settings.num_frames, settings.max_frames);
  } else {
    file["num_frames"] = nullptr;
    file["fps"] = settings.sampling_fps;
  }
}

std::vector<std::string> make_timestamps(const std::vector<int64_t>& frame_indices, double fps) {
  constexpr int64_t kSecondsPerMinute = 60;
  std::vector<std::string> timestamps;
  timestamps.reserve(frame_indices.size());
  for (const int64_t frame : frame_indices) {
    const auto seconds = static_cast<int64_t>(std::floor(static_cast<double>(frame) / fps));
    timestamps.push_back(fmt::format("{:02}:{:02}", seconds / kSecondsPerMinute, seconds % kSecondsPerMinute));
  }
  return timestamps;
}

}  // namespace vlmtrain::models::gemma4
