#include "models/qwen3_vl/video_processor.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "models/processing/listed_frames.h"

namespace vlmtrain::models::qwen3_vl {

namespace {

using image::ImageSize;

constexpr qwen2_vl::PixelBudget kVideoBudget{int64_t{128} * 32 * 32, int64_t{32} * 32 * 768};

/// Of all frames: a budget of so many pixels each, over `frames` of them.
int64_t of_frames(int64_t pixels, int64_t frames) {
  return pixels > qwen2_vl::kMostPixels / frames ? qwen2_vl::kMostPixels : pixels * frames;
}

/// `count` indices from the first to the last of `frames` frames.
std::vector<int64_t> evenly(int64_t frames, int64_t count) {
  std::vector<int64_t> taken;
  taken.reserve(static_cast<size_t>(count));
  // numpy.linspace, rounded: halves to even, as nearbyint does.
  const double step = count > 1 ? static_cast<double>(frames - 1) / static_cast<double>(count - 1) : 0;
  for (int64_t i = 0; i < count; ++i) taken.push_back(std::llrint(static_cast<double>(i) * step));
  if (count > 1) taken.back() = frames - 1;
  return taken;
}

/// A frame with a side shorter than a token's is enlarged first.
ImageSize at_least_a_token(ImageSize size, int64_t side) {
  if (size.height >= side && size.width >= side) return size;
  const double height = static_cast<double>(size.height), width = static_cast<double>(size.width);
  const double scale = std::max(static_cast<double>(side) / height, static_cast<double>(side) / width);
  return {static_cast<int64_t>(height * scale), static_cast<int64_t>(width * scale)};
}

}  // namespace

VideoSettings VideoSettings::read(const std::filesystem::path& folder, const VisionConfig& vision,
                                  std::optional<int64_t> max_pixels) {
  const PreprocessorConfig file = qwen2_vl::find_video_settings(folder, "Qwen3VLVideoProcessor");
  file.require_no_others(qwen2_vl::video_keys());
  VideoSettings settings;
  constexpr PreprocessorConfig::Triple kHalf{0.5, 0.5, 0.5};
  settings.pixels = qwen2_vl::read_pixel_settings(file, kVideoBudget, vision, kHalf, kHalf);
  settings.most_of_a_frame = max_pixels;
  settings.limits = qwen2_vl::read_frame_limits(file, settings.limits, vision, /*has_fps=*/true);
  return settings;
}

std::vector<int64_t> VideoSettings::frames_of(const image::VideoInfo& video, double wanted_fps) const {
  if (auto all = listed_frames(video, limits.most_listed)) return *std::move(all);
  if (video.is_list) return evenly(video.frames, limits.most_listed);
  qwen2_vl::check_frame_limits(limits);
  if (limits.num_frames) return evenly(video.frames, std::min(*limits.num_frames, limits.max_frames));
  return sample(video.frames, video.fps > 0 ? video.fps : wanted_fps, wanted_fps);
}

std::vector<int64_t> VideoSettings::sample(int64_t frames, double video_fps, double wanted_fps) const {
  const double wanted = std::floor(static_cast<double>(frames) / video_fps * wanted_fps);
  const double most = static_cast<double>(std::min(limits.max_frames, frames));
  const auto count = static_cast<int64_t>(std::min(std::max(wanted, static_cast<double>(limits.min_frames)), most));
  return evenly(frames, count);
}

ImageSize VideoSettings::frame_size(int64_t frames, ImageSize size, std::optional<int64_t> max_pixels,
                                    const VisionConfig& vision) const {
  const int64_t side = vision.pixels_per_token_side(), per_patch = vision.temporal_patch_size;
  // transformers refuses a video of less than a patch's frames; here its last frame is repeated.
  frames = std::max(frames, per_patch);
  qwen2_vl::PixelBudget budget = pixels.budget;
  if (limits.cap_pixels_per_frame) {
    const int64_t share = std::min(limits.max_video_tokens * side * side, budget.most / frames);
    budget.most = of_frames(std::max(share, static_cast<int64_t>(static_cast<double>(budget.least) * 1.05)), frames);
  }
  for (const auto& most : {most_of_a_frame, max_pixels}) {
    if (most) budget = qwen2_vl::limited(budget, of_frames(*most, frames));
  }
  const ImageSize given = at_least_a_token(size, side);
  qwen2_vl::check_ratio(given);
  const auto multiples = [](double value, int64_t unit) {
    return static_cast<int64_t>(std::nearbyint(value / static_cast<double>(unit))) * unit;
  };
  const double height = static_cast<double>(given.height), width = static_cast<double>(given.width);
  const ImageSize nearest{multiples(height, side), multiples(width, side)};
  const int64_t all = multiples(static_cast<double>(frames), per_patch) * nearest.height * nearest.width;
  const auto unit = static_cast<double>(side);
  if (all > budget.most) {
    const double shrink = std::sqrt(static_cast<double>(frames) * height * width / static_cast<double>(budget.most));
    return {std::max(side, static_cast<int64_t>(std::floor(height / shrink / unit)) * side),
            std::max(side, static_cast<int64_t>(std::floor(width / shrink / unit)) * side)};
  }
  if (all < budget.least) {
    const double grow = std::sqrt(static_cast<double>(budget.least) / (static_cast<double>(frames) * height * width));
    return {static_cast<int64_t>(std::ceil(height * grow / unit)) * side,
            static_cast<int64_t>(std::ceil(width * grow / unit)) * side};
  }
  return nearest;
}

bool put_frame_limit(nlohmann::ordered_json& file, const VideoSettings& settings, const VisionConfig& vision) {
  const int64_t side = vision.pixels_per_token_side(), square = side * side;
  const int64_t most = settings.most_of_a_frame.value();
  // A video has a patch's frames at least, which share the budget.
  if (most >= settings.pixels.budget.most / vision.temporal_patch_size) return true;
  const auto floor = static_cast<int64_t>(static_cast<double>(settings.pixels.budget.least) * 1.05);
  if (most % square != 0 || most < floor) return false;
  const int64_t tokens = most / square;
  file["max_video_tokens"] =
      settings.limits.cap_pixels_per_frame ? std::min(tokens, settings.limits.max_video_tokens) : tokens;
  file["cap_pixels_per_frame"] = true;
  return true;
}

std::vector<std::string> time_stamps(const std::vector<int64_t>& taken, double video_fps, int64_t frames_per_patch) {
  std::vector<std::string> stamps;
  const auto per_patch = static_cast<size_t>(frames_per_patch);
  for (size_t first = 0; first < taken.size(); first += per_patch) {
    const size_t last = std::min(first + per_patch, taken.size()) - 1;
    const double from = static_cast<double>(taken[first]) / video_fps,
                 to = static_cast<double>(taken[last]) / video_fps;
    stamps.push_back(fmt::format("<{:.1f} seconds>", (from + to) / 2));
  }
  return stamps;
}

}  // namespace vlmtrain::models::qwen3_vl
