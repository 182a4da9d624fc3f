#include "models/qwen3_vl/processor.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "models/media/medium.h"
#include "models/processing/conversation_processor.h"
#include "models/qwen2_vl/processor.h"

namespace vlmtrain::models::qwen3_vl {

namespace {

using image::ImageSize;

/// Default of Qwen3VLVideoProcessor per video: 128 to 768 squares of 32 x 32 pixels.
constexpr qwen2_vl::PixelBudget kDefaultVideoPixelBudget{int64_t{128} * 32 * 32, int64_t{32} * 32 * 768};

/// Returns the pixels of `frames` frames of `pixels` pixels each, at most kMaxBudgetPixels.
int64_t scale_pixel_budget(int64_t pixels, int64_t frames) {
  return pixels > qwen2_vl::kMaxBudgetPixels / frames ? qwen2_vl::kMaxBudgetPixels : pixels * frames;
}

/// Returns `count` evenly spaced indices from the first to the last of `frames` frames.
std::vector<int64_t> sample_frames_evenly(int64_t frames, int64_t count) {
  std::vector<int64_t> frame_indices;
  frame_indices.reserve(static_cast<size_t>(count));
  // numpy.linspace, whose last value is exact, then rounding half to even, as llrint does.
  const double step = count > 1 ? static_cast<double>(frames - 1) / static_cast<double>(count - 1) : 0;
  for (int64_t i = 0; i < count; ++i) frame_indices.push_back(std::llrint(static_cast<double>(i) * step));
  if (count > 1) frame_indices.back() = frames - 1;
  return frame_indices;
}

/// Returns the size of a frame enlarged until both sides have at least `side` pixels, as in
/// transformers.
ImageSize enlarge_to_token_side(ImageSize size, int64_t side) {
  if (size.height >= side && size.width >= side) return size;
  const double height = static_cast<double>(size.height), width = static_cast<double>(size.width);
  const double scale = std::max(static_cast<double>(side) / height, static_cast<double>(side) / width);
  return {static_cast<int64_t>(height * scale), static_cast<int64_t>(width * scale)};
}

}  // namespace

VideoSettings VideoSettings::read(const std::filesystem::path& folder, const VisionConfig& vision,
                                  std::optional<int64_t> max_pixels) {
  const PreprocessorConfig file = qwen2_vl::load_video_config(folder, "Qwen3VLVideoProcessor");
  file.reject_other_keys(qwen2_vl::get_video_config_keys());
  VideoSettings settings;
  constexpr PreprocessorConfig::ChannelValues kDefaultMeanAndStd{0.5, 0.5, 0.5};
  settings.pixels =
      qwen2_vl::read_pixel_settings(file, kDefaultVideoPixelBudget, vision, kDefaultMeanAndStd, kDefaultMeanAndStd);
  settings.max_frame_pixels = max_pixels;
  settings.limits = qwen2_vl::read_frame_limits(file, settings.limits, vision, /*has_fps=*/true);
  return settings;
}

std::vector<int64_t> VideoSettings::select_frames(const image::VideoInfo& video, double sampling_fps) const {
  if (auto all_frames = list_preselected_frames(video, limits.max_listed_frames)) return *std::move(all_frames);
  if (video.is_frame_list) return sample_frames_evenly(video.num_frames, limits.max_listed_frames);
  qwen2_vl::reject_fps_conflict(limits);
  if (limits.num_frames) return sample_frames_evenly(video.num_frames, std::min(*limits.num_frames, limits.max_frames));
  return sample_frame_indices(video.num_frames, video.fps > 0 ? video.fps : sampling_fps, sampling_fps);
}

std::vector<int64_t> VideoSettings::sample_frame_indices(int64_t frames, double video_fps, double sampling_fps) const {
  const double num_target_frames = std::floor(static_cast<double>(frames) / video_fps * sampling_fps);
  const double max_sampled_frames = static_cast<double>(std::min(limits.max_frames, frames));
  const auto count = static_cast<int64_t>(
      std::min(std::max(num_target_frames, static_cast<double>(limits.min_frames)), max_sampled_frames));
  return sample_frames_evenly(frames, count);
}

ImageSize VideoSettings::compute_frame_size(int64_t frames, ImageSize size, std::optional<int64_t> max_pixels,
                                            const VisionConfig& vision) const {
  const int64_t side = vision.pixels_per_token_side(), frames_per_patch = vision.temporal_patch_size;
  // transformers rejects a video shorter than a temporal patch; here its last frame is repeated.
  frames = std::max(frames, frames_per_patch);
  qwen2_vl::PixelBudget budget = pixels.budget;
  if (limits.limits_pixels_per_frame) {
    const int64_t pixels_per_frame = std::min(limits.max_video_tokens * side * side, budget.max_pixels / frames);
    budget.max_pixels = scale_pixel_budget(
        std::max(pixels_per_frame,
                 static_cast<int64_t>(static_cast<double>(budget.min_pixels) * qwen2_vl::kMinPixelMargin)),
        frames);
  }
  for (const auto& limit : {max_frame_pixels, max_pixels}) {
    if (limit) budget = qwen2_vl::limit_pixel_budget(budget, scale_pixel_budget(*limit, frames));
  }
  const ImageSize enlarged_size = enlarge_to_token_side(size, side);
  qwen2_vl::check_aspect_ratio(enlarged_size);
  const auto round_to_multiple = [](double value, int64_t unit) {
    return static_cast<int64_t>(std::nearbyint(value / static_cast<double>(unit))) * unit;
  };
  const double height = static_cast<double>(enlarged_size.height), width = static_cast<double>(enlarged_size.width);
  const ImageSize rounded_size{round_to_multiple(height, side), round_to_multiple(width, side)};
  const int64_t total_pixels =
      round_to_multiple(static_cast<double>(frames), frames_per_patch) * rounded_size.height * rounded_size.width;
  const auto unit = static_cast<double>(side);
  if (total_pixels > budget.max_pixels) {
    const double shrink_factor =
        std::sqrt(static_cast<double>(frames) * height * width / static_cast<double>(budget.max_pixels));
    return {std::max(side, static_cast<int64_t>(std::floor(height / shrink_factor / unit)) * side),
            std::max(side, static_cast<int64_t>(std::floor(width / shrink_factor / unit)) * side)};
  }
  if (total_pixels < budget.min_pixels) {
    const double growth_factor =
        std::sqrt(static_cast<double>(budget.min_pixels) / (static_cast<double>(frames) * height * width));
    return {static_cast<int64_t>(std::ceil(height * growth_factor / unit)) * side,
            static_cast<int64_t>(std::ceil(width * growth_factor / unit)) * side};
  }
  return rounded_size;
}

bool write_frame_pixel_limit(nlohmann::ordered_json& file, const VideoSettings& settings, const VisionConfig& vision) {
  const int64_t side = vision.pixels_per_token_side(), token_pixels = side * side;
  const int64_t frame_limit = settings.max_frame_pixels.value();
  // A video has at least the frames of one temporal patch, which share the budget. A limit above
  // their share never applies, so nothing has to be written.
  if (frame_limit >= settings.pixels.budget.max_pixels / vision.temporal_patch_size) return true;
  const auto min_frame_pixels =
      static_cast<int64_t>(static_cast<double>(settings.pixels.budget.min_pixels) * qwen2_vl::kMinPixelMargin);
  if (frame_limit % token_pixels != 0 || frame_limit < min_frame_pixels) return false;
  const int64_t tokens = frame_limit / token_pixels;
  file["max_video_tokens"] =
      settings.limits.limits_pixels_per_frame ? std::min(tokens, settings.limits.max_video_tokens) : tokens;
  file["cap_pixels_per_frame"] = true;
  return true;
}

std::vector<std::string> make_timestamps(const std::vector<int64_t>& frame_indices, double video_fps,
                                         int64_t frames_per_patch) {
  std::vector<std::string> timestamps;
  const auto step = static_cast<size_t>(frames_per_patch);
  for (size_t first = 0; first < frame_indices.size(); first += step) {
    const size_t last = std::min(first + step, frame_indices.size()) - 1;
    const double first_frame_seconds = static_cast<double>(frame_indices[first]) / video_fps,
                 last_frame_seconds = static_cast<double>(frame_indices[last]) / video_fps;
    timestamps.push_back(fmt::format("<{:.1f} seconds>", (first_frame_seconds + last_frame_seconds) / 2));
  }
  return timestamps;
}

std::string format_video_text(const std::vector<std::string>& timestamps, int64_t tokens_per_timestamp) {
  std::string video_pads;
  for (int64_t i = 0; i < tokens_per_timestamp; ++i) video_pads += qwen2_vl::kVideoPad;
  std::string text;
  for (const std::string& timestamp : timestamps) text += timestamp + qwen2_vl::format_vision_block(video_pads);
  return text;
}

namespace {

/// Converts videos to temporal patches with time stamps between them.
class TimestampedVideoReader final : public qwen2_vl::GridVideoReader {
 public:
  TimestampedVideoReader(const VisionConfig& vision, const VideoSettings& videos,
                         const qwen2_vl::GridVideoSettings& settings)
      : GridVideoReader(vision, settings), vision_(vision), video_settings_(videos) {}

  MediaLayout lay_out(const image::VideoInfo& info, std::optional<int64_t> max_pixels) const override {
    const auto frames = select_frames(info);
    const data::PatchGrid grid = compute_video_grid(info, max_pixels);
    const data::PatchGrid tokens = vision_config().patch_format().compute_token_grid(grid);
    const auto timestamps = make_timestamps(frames, get_fps(info), vision_config().temporal_patch_size);
    return {.text = format_video_text(timestamps, tokens.patches_per_frame()),
            .pixel_rows = grid.patches(),
            .image_tokens = tokens.patches(),
            .grid = grid,
            .frames = std::ssize(frames)};
  }

 private:
  std::vector<int64_t> select_frames(const image::VideoInfo& info) const override {
    return video_settings_.select_frames(info, sampling_fps());
  }
  ImageSize compute_frame_size(int64_t frames, ImageSize size, std::optional<int64_t> max_pixels) const override {
    return video_settings_.compute_frame_size(frames, size, max_pixels, vision_);
  }

  VisionConfig vision_;
  VideoSettings video_settings_;
};

}  // namespace

std::unique_ptr<Processor> make_processor(const Config& config, const qwen2_vl::PixelSettings& images,
                                          VideoSettings videos, text::Tokenizer tokenizer,
                                          text::ChatTemplate chat_template, const ProcessorSettings& settings) {
  using qwen2_vl::GridEncoder;
  videos.limits = qwen2_vl::apply_max_frames(videos.limits, settings.video_max_frames);
  const qwen2_vl::GridVideoSettings grid_settings{.image = images,
                                                  .frame = videos.pixels,
                                                  .limits = videos.limits,
                                                  .min_frame_pixels = 1,
                                                  .sampling_fps = settings.video_fps};
  return std::make_unique<ConversationProcessor>(
      ProcessorParts{
          .encoder = std::make_unique<GridEncoder>(
              config.vision,
              GridEncoder::VocabularyInfo{config.image_token_id, config.video_token_id, config.text.vocab_size},
              GridEncoder::VideoPositions{.are_frames_separate = true}, std::move(tokenizer), std::move(chat_template)),
          .readers = {.images = std::make_unique<qwen2_vl::GridImageReader>(config.vision, images),
                      .videos = std::make_unique<TimestampedVideoReader>(config.vision, videos, grid_settings)},
          .input = qwen2_vl::make_patch_format(config.vision),
          .boxes = {.notation = CoordinateNotation::kNormalized1000}},
      settings);
}

}  // namespace vlmtrain::models::qwen3_vl
