#include "models/qwen2_vl/video_processor.h"

#include <ATen/ops/arange.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "models/checkpoints/size_limits.h"
#include "models/processing/listed_frames.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/printable.h"
#include "vlmtrain/io/json.h"

namespace vlmtrain::models::qwen2_vl {

namespace {

constexpr int64_t kMostFrames = 1 << 20;
constexpr PixelBudget kVideoBudget{int64_t{128} * 28 * 28, int64_t{28} * 28 * 768};

/// `count` of `frames` frames, each at the beginning of an equal part.
std::vector<int64_t> evenly(int64_t frames, int64_t count) {
  std::vector<int64_t> taken(static_cast<size_t>(frames));
  std::iota(taken.begin(), taken.end(), int64_t{0});
  if (count == frames) return taken;
  // The rounding is that of transformers' torch.arange.
  const double part = static_cast<double>(frames) / static_cast<double>(count);
  const at::Tensor indices = at::arange(0, frames, part, at::kFloat).to(at::kLong).clamp_max_(frames - 1);
  return {indices.const_data_ptr<int64_t>(), indices.const_data_ptr<int64_t>() + indices.numel()};
}

PreprocessorConfig find_file(const std::filesystem::path& folder) {
  auto found = PreprocessorConfig::find_for_videos(folder);
  if (found) return *std::move(found);
  throw data_error("{}: no settings for videos; copy the checkpoint's video_preprocessor_config.json there",
                   folder.string());
}

}  // namespace

PreprocessorConfig find_video_settings(const std::filesystem::path& folder, std::string_view type) {
  PreprocessorConfig file = find_file(folder);
  auto found = file.value<std::string>("video_processor_type", std::string(type));
  if (found.ends_with("Fast")) found.resize(found.size() - 4);
  if (found != type) {
    throw data_error("{}: video_processor_type {} is not that of this model, {}; take the checkpoint's own file",
                     file.name(), excerpt(found), type);
  }
  return file;
}

std::set<std::string_view> video_keys() {
  std::set<std::string_view> known = pixel_keys();
  known.insert({// read here
                "min_frames", "max_frames", "cap_pixels_per_frame", "max_video_tokens", "num_frames", "fps",
                "video_processor_type",
                // of no effect: frames of a file are always sampled
                "do_sample_frames", "return_metadata", "video_metadata"});
  return known;
}

void check_frame_limits(const FrameLimits& limits) {
  if (!limits.excludes_fps) return;
  throw data_error(
      "the checkpoint's processor file has num_frames ({}) and fps for videos, of which transformers takes one; set "
      "the "
      "other to null there",
      limits.num_frames.value_or(0));
}

void put_sampling(nlohmann::ordered_json& settings, const FrameLimits& limits, double fps, int64_t most_frames) {
  settings["do_sample_frames"] = true;
  settings["max_frames"] = std::min(limits.max_frames, most_frames);
  if (limits.num_frames) {
    settings["num_frames"] = std::min(*limits.num_frames, most_frames);
  } else {
    settings["fps"] = fps;
  }
}

FrameLimits read_frame_limits(const PreprocessorConfig& file, FrameLimits limits, const VisionConfig& vision,
                              bool has_fps) {
  limits.min_frames = file.value("min_frames", limits.min_frames);
  limits.max_frames = file.value("max_frames", limits.max_frames);
  limits.cap_pixels_per_frame = file.value("cap_pixels_per_frame", limits.cap_pixels_per_frame);
  limits.max_video_tokens = file.value("max_video_tokens", limits.max_video_tokens);
  check_size(limits.max_frames, "max_frames", kMostFrames, file.name());
  check_size(limits.min_frames, "min_frames", kMostFrames, file.name());
  check_size(limits.max_video_tokens, "max_video_tokens", kMostTokens, file.name());
  if (file.find("num_frames") != nullptr) {
    limits.num_frames = file.value<int64_t>("num_frames", 0);
    check_size(*limits.num_frames, "num_frames", kMostFrames, file.name());
    limits.excludes_fps = file.find("fps") != nullptr || (has_fps && !file.is_null("fps"));
  }
  if (limits.max_frames < vision.temporal_patch_size) {
    throw data_error("{}: max_frames is {}; a patch has {}", file.name(), limits.max_frames,
                     vision.temporal_patch_size);
  }
  return limits;
}

VideoSettings VideoSettings::read(const std::filesystem::path& folder, const VisionConfig& vision,
                                  std::optional<int64_t> max_pixels) {
  const PreprocessorConfig file = find_video_settings(folder, "Qwen2VLVideoProcessor");
  file.require_no_others(video_keys());
  VideoSettings settings;
  settings.pixels = read_pixel_settings(file, kVideoBudget, vision);
  settings.pixels.budget = limited(settings.pixels.budget, max_pixels);
  settings.limits = read_frame_limits(file, settings.limits, vision, /*has_fps=*/false);
  return settings;
}

PixelSettings VideoSettings::pixels_of(int64_t frames, const VisionConfig& vision) const {
  PixelSettings settings = pixels;
  if (!limits.cap_pixels_per_frame) return settings;
  const int64_t side = vision.pixels_per_token_side();
  const auto all = static_cast<int64_t>(static_cast<double>(limits.max_video_tokens * side * side) * 0.9);
  const int64_t share = all * vision.temporal_patch_size / frames;
  const auto floor = static_cast<int64_t>(static_cast<double>(settings.budget.least) * 1.05);
  settings.budget.most = std::max(std::min(settings.budget.most, share), floor);
  return settings;
}

std::vector<int64_t> VideoSettings::frames_of(const image::VideoInfo& video, double wanted_fps,
                                              const VisionConfig& vision) const {
  if (auto all = listed_frames(video, limits.most_listed)) return *std::move(all);
  if (video.is_list) {
    const int64_t patches = limits.most_listed / vision.temporal_patch_size;
    return evenly(video.frames, std::max<int64_t>(patches * vision.temporal_patch_size, 1));
  }
  check_frame_limits(limits);
  if (!limits.num_frames) {
    return sample(video.frames, video.fps > 0 ? video.fps : wanted_fps, wanted_fps, vision);
  }
  // Python's round(): halves to the even. Where a video has fewer, transformers stops; here all are taken.
  const auto patches = static_cast<int64_t>(
      std::nearbyint(static_cast<double>(*limits.num_frames) / static_cast<double>(vision.temporal_patch_size)));
  const int64_t count =
      std::clamp<int64_t>(patches * vision.temporal_patch_size, 1, std::min(limits.max_frames, video.frames));
  return evenly(video.frames, count);
}

std::vector<int64_t> VideoSettings::sample(int64_t frames, double video_fps, double wanted_fps,
                                           const VisionConfig& vision) const {
  const int64_t per_patch = vision.temporal_patch_size;
  const auto whole_patches = [per_patch](double count) {
    return static_cast<int64_t>(std::floor(count / static_cast<double>(per_patch))) * per_patch;
  };
  const auto total = static_cast<double>(frames);
  const auto most = static_cast<double>(whole_patches(std::min(static_cast<double>(limits.max_frames), total)));
  const double wanted = std::max(total / video_fps * wanted_fps, static_cast<double>(limits.min_frames));
  const int64_t count = whole_patches(std::min({wanted, most, total}));
  return evenly(frames, count == 0 ? frames : count);
}

}  // namespace vlmtrain::models::qwen2_vl
