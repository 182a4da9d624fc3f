#include "models/qwen2_vl/video_processor.h"

#include <ATen/ops/arange.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "models/checkpoints/config_checks.h"
#include "models/media/medium.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/text_format.h"
#include "vlmtrain/io/json.h"

namespace vlmtrain::models::qwen2_vl {

namespace {

constexpr int64_t kMaxFrames = 1 << 20;  // published files have at most 768; rejects only damaged files
/// Default of Qwen2VLVideoProcessor per frame: 128 to 768 squares of 28 x 28 pixels.
constexpr PixelBudget kDefaultVideoPixelBudget{int64_t{128} * 28 * 28, int64_t{28} * 28 * 768};

/// Divides `frames` frames into `count` equal parts and returns the index of the first frame of
/// each.
std::vector<int64_t> sample_frames_evenly(int64_t frames, int64_t count) {
  std::vector<int64_t> all_indices(static_cast<size_t>(frames));
  std::iota(all_indices.begin(), all_indices.end(), int64_t{0});
  if (count == frames) return all_indices;
  // torch.arange in fp32, as in transformers, for equal rounding.
  const double sampling_interval = static_cast<double>(frames) / static_cast<double>(count);
  const at::Tensor indices = at::arange(0, frames, sampling_interval, at::kFloat).to(at::kLong).clamp_max_(frames - 1);
  return {indices.const_data_ptr<int64_t>(), indices.const_data_ptr<int64_t>() + indices.numel()};
}

/// Returns the file with the video settings. Throws UserError if it does not exist.
PreprocessorConfig find_video_config(const std::filesystem::path& folder) {
  auto file = PreprocessorConfig::find_for_videos(folder);
  if (file) return *std::move(file);
  throw data_error("{}: has no video settings; copy the checkpoint's video_preprocessor_config.json there",
                   folder.string());
}

}  // namespace

PreprocessorConfig load_video_config(const std::filesystem::path& folder, std::string_view type) {
  PreprocessorConfig file = find_video_config(folder);
  auto processor_type = file.value<std::string>("video_processor_type", std::string(type));
  if (processor_type.ends_with("Fast")) processor_type.resize(processor_type.size() - 4);
  if (processor_type != type) {
    throw config_error("{}: video_processor_type is {}, but this model needs {}", file.name(),
                       make_excerpt(processor_type), type);
  }
  return file;
}

std::set<std::string_view> get_video_config_keys() {
  std::set<std::string_view> keys = get_pixel_config_keys();
  keys.insert({// read here
               "min_frames", "max_frames", "cap_pixels_per_frame", "max_video_tokens", "num_frames", "fps",
               "video_processor_type",
               // without effect: video files are always sampled
               "do_sample_frames", "return_metadata", "video_metadata"});
  return keys;
}

void reject_fps_conflict(const FrameLimits& limits) {
  if (!limits.has_fps_conflict) return;
  throw data_error(
      "{}: has both num_frames ({}) and fps for videos, but transformers supports only one; set one of them to null",
      limits.config_name, limits.num_frames.value_or(0));
}

void write_frame_sampling(nlohmann::ordered_json& settings, const FrameLimits& limits, double fps, int64_t max_frames) {
  settings["do_sample_frames"] = true;
  settings["max_frames"] = std::min(limits.max_frames, max_frames);
  if (limits.num_frames) {
    settings["num_frames"] = std::min(*limits.num_frames, max_frames);
  } else {
    settings["fps"] = fps;
  }
}

FrameLimits read_frame_limits(const PreprocessorConfig& file, FrameLimits limits, const VisionConfig& vision,
                              bool has_fps) {
  limits.config_name = file.name();
  limits.min_frames = file.value("min_frames", limits.min_frames);
  limits.max_frames = file.value("max_frames", limits.max_frames);
  limits.limits_pixels_per_frame = file.value("cap_pixels_per_frame", limits.limits_pixels_per_frame);
  limits.max_video_tokens = file.value("max_video_tokens", limits.max_video_tokens);
  check_size(limits.max_frames, "max_frames", kMaxFrames, file.name());
  check_size(limits.min_frames, "min_frames", kMaxFrames, file.name());
  check_size(limits.max_video_tokens, "max_video_tokens", kMaxVocabSize, file.name());
  if (file.find("num_frames") != nullptr) {
    limits.num_frames = file.value<int64_t>("num_frames", 0);
    check_size(*limits.num_frames, "num_frames", kMaxFrames, file.name());
    limits.has_fps_conflict = file.find("fps") != nullptr || (has_fps && !file.is_null("fps"));
  }
  if (limits.max_frames < vision.temporal_patch_size) {
    throw data_error("{}: max_frames is {}; it must be at least the {} frames of a patch", file.name(),
                     limits.max_frames, vision.temporal_patch_size);
  }
  return limits;
}

VideoSettings VideoSettings::read(const std::filesystem::path& folder, const VisionConfig& vision,
                                  std::optional<int64_t> max_pixels) {
  const PreprocessorConfig file = load_video_config(folder, "Qwen2VLVideoProcessor");
  file.reject_other_keys(get_video_config_keys());
  VideoSettings settings;
  settings.pixels = read_pixel_settings(file, kDefaultVideoPixelBudget, vision);
  settings.pixels.budget = limit_pixel_budget(settings.pixels.budget, max_pixels);
  settings.limits = read_frame_limits(file, settings.limits, vision, /*has_fps=*/false);
  return settings;
}

PixelSettings VideoSettings::compute_frame_settings(int64_t frames, const VisionConfig& vision) const {
  PixelSettings settings = pixels;
  if (!limits.limits_pixels_per_frame) return settings;
  const int64_t side = vision.pixels_per_token_side();
  // As fetch_video of qwen-vl-utils: frames share 0.9 of the tokens' pixels (VIDEO_TOTAL_PIXELS).
  constexpr double kVideoPixelFraction = 0.9;
  const auto max_total_pixels =
      static_cast<int64_t>(static_cast<double>(limits.max_video_tokens * side * side) * kVideoPixelFraction);
  const int64_t max_frame_pixels = max_total_pixels * vision.temporal_patch_size / frames;
  const auto min_frame_pixels = static_cast<int64_t>(static_cast<double>(settings.budget.min_pixels) * kMinPixelMargin);
  settings.budget.max_pixels = std::max(std::min(settings.budget.max_pixels, max_frame_pixels), min_frame_pixels);
  return settings;
}

std::vector<int64_t> VideoSettings::select_frames(const image::VideoInfo& video, double sampling_fps,
                                                  const VisionConfig& vision) const {
  if (auto all_frames = list_preselected_frames(video, limits.max_listed_frames)) return *std::move(all_frames);
  if (video.is_frame_list) {
    const int64_t patches = limits.max_listed_frames / vision.temporal_patch_size;
    return sample_frames_evenly(video.num_frames, std::max<int64_t>(patches * vision.temporal_patch_size, 1));
  }
  reject_fps_conflict(limits);
  if (!limits.num_frames) {
    return sample_frame_indices(video.num_frames, video.fps > 0 ? video.fps : sampling_fps, sampling_fps, vision);
  }
  // Python's round() rounds half to even, as nearbyint does. transformers rejects videos with fewer
  // frames than num_frames; here all of their frames are used.
  const auto patches = static_cast<int64_t>(
      std::nearbyint(static_cast<double>(*limits.num_frames) / static_cast<double>(vision.temporal_patch_size)));
  const int64_t count =
      std::clamp<int64_t>(patches * vision.temporal_patch_size, 1, std::min(limits.max_frames, video.num_frames));
  return sample_frames_evenly(video.num_frames, count);
}

std::vector<int64_t> VideoSettings::sample_frame_indices(int64_t frames, double video_fps, double sampling_fps,
                                                         const VisionConfig& vision) const {
  const int64_t frames_per_patch = vision.temporal_patch_size;
  const auto floor_to_temporal_patches = [frames_per_patch](double count) {
    return static_cast<int64_t>(std::floor(count / static_cast<double>(frames_per_patch))) * frames_per_patch;
  };
  const auto total = static_cast<double>(frames);
  const auto max_sampled_frames =
      static_cast<double>(floor_to_temporal_patches(std::min(static_cast<double>(limits.max_frames), total)));
  const double num_target_frames = std::max(total / video_fps * sampling_fps, static_cast<double>(limits.min_frames));
  const int64_t count = floor_to_temporal_patches(std::min({num_target_frames, max_sampled_frames, total}));
  return sample_frames_evenly(frames, count == 0 ? frames : count);
}

}  // namespace vlmtrain::models::qwen2_vl
