#include "models/family.h"

#include <algorithm>

#include "models/processing/chat_encoder.h"
#include "models/processing/preprocessor_config.h"
#include "models/qwen2_vl/processor.h"
#include "models/qwen3_vl/processor.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/text/tokenizer.h"

namespace vlmtrain::models::qwen3_vl {

namespace {

/// Returns the markup of a video in the chat template. In the layout that the checkpoints were
/// trained with, time stamps and frames replace the whole block. In that of transformers 5, they
/// replace only the token within the block.
text::MediaMarkup make_video_markup(data::VideoTokenLayout layout) {
  const std::string block = qwen2_vl::format_vision_block(qwen2_vl::kVideoPad);
  return {.block = block,
          .token = layout == data::VideoTokenLayout::kReleasedCode ? block : std::string(qwen2_vl::kVideoPad)};
}

std::unique_ptr<models::Processor> load_processor(const nlohmann::json& config_json,
                                                  const std::filesystem::path& folder,
                                                  const ProcessorSettings& settings) {
  const Config config = Config::from_json(config_json, folder);
  const auto images = qwen2_vl::read_image_settings(folder, config.vision, settings.image_max_pixels);
  const auto videos = VideoSettings::read(folder, config.vision, settings.image_max_pixels);
  warn_if_frame_rate_differs(folder, settings.video_fps);
  text::Tokenizer tokenizer = load_tokenizer(folder);
  text::ChatTemplate chat_template =
      load_chat_template(folder, tokenizer, settings,
                         {.fallback = "chatml",
                          .image_markup = {.block = qwen2_vl::format_vision_block(qwen2_vl::kImagePad),
                                           .token = std::string(qwen2_vl::kImagePad)},
                          .video_markup = make_video_markup(settings.video_layout)});
  return make_processor(config, images, videos, std::move(tokenizer), std::move(chat_template), settings);
}

constexpr int64_t kNumMarkerTokens = 2;  // <|vision_start|> and <|vision_end|>

data::SampleShape compute_image_sample_shape(const nlohmann::json& config_json, const std::filesystem::path& folder,
                                             image::ImageSize size, std::optional<int64_t> max_pixels) {
  const VisionConfig vision = Config::from_json(config_json, folder).vision;
  const auto settings = qwen2_vl::read_image_settings(folder, vision, max_pixels);
  auto shape =
      make_sample_shape(qwen2_vl::compute_grid(1, compute_resized_size(size, settings, vision), vision), vision);
  shape.tokens += kNumMarkerTokens;
  return shape;
}

/// Returns the number of tokens of time stamps and markers. Exact if `folder` has a tokenizer.json;
/// otherwise counted as Qwen's tokenizer splits a time stamp: " seconds" is one token, and so is
/// each of the other characters.
int64_t count_timestamp_tokens(const std::vector<std::string>& timestamps, const std::filesystem::path& folder) {
  constexpr std::string_view kSecondsSuffix = " seconds";
  const auto file = folder / "tokenizer.json";
  if (std::filesystem::exists(file)) {
    return std::ssize(text::read_tokenizer(folder).encode(format_video_text(timestamps, 0)).ids);
  }
  int64_t tokens = 0;
  for (const std::string& timestamp : timestamps)
    tokens += std::ssize(timestamp) - std::ssize(kSecondsSuffix) + 1 + kNumMarkerTokens;
  return tokens;
}

data::SampleShape compute_video_sample_shape(const nlohmann::json& config_json, const std::filesystem::path& folder,
                                             const image::VideoInfo& video, const ProcessorSettings& settings) {
  const VisionConfig vision = Config::from_json(config_json, folder).vision;
  VideoSettings videos = VideoSettings::read(folder, vision, settings.image_max_pixels);
  videos.limits.max_frames = std::min(videos.limits.max_frames, settings.video_max_frames);
  const double fps = video.fps > 0 ? video.fps : settings.video_fps;
  const auto frame_indices = videos.select_frames(video, settings.video_fps);
  const auto frames = std::ssize(frame_indices);
  const auto resized = videos.compute_frame_size(frames, video.size, std::nullopt, vision);
  auto shape = make_sample_shape(qwen2_vl::compute_grid(frames, resized, vision), vision);
  shape.tokens += count_timestamp_tokens(make_timestamps(frame_indices, fps, vision.temporal_patch_size), folder);
  if (settings.video_layout == data::VideoTokenLayout::kTransformers5) shape.tokens += kNumMarkerTokens;
  shape.num_images = 0;
  shape.num_videos = 1;
  shape.video_frames = frames;
  return shape;
}

ProcessorOverrides make_processor_overrides(const nlohmann::json& config_json, const std::filesystem::path& folder,
                                            const ProcessorSettings& settings, bool has_videos) {
  const VisionConfig vision = Config::from_json(config_json, folder).vision;
  const auto& max_pixels = settings.image_max_pixels;
  const bool saves_video_sampling = has_videos || !has_default_video_sampling(settings);
  ProcessorOverrides overrides{.creates_video_config = saves_video_sampling,
                               .video_processor_type = "Qwen3VLVideoProcessor"};
  if (max_pixels) {
    overrides.edit_image_settings = [budget = qwen2_vl::read_image_settings(folder, vision, max_pixels).budget](
                                        auto& file) { qwen2_vl::write_pixel_budget(file, budget); };
  }
  if (!max_pixels && !saves_video_sampling) return overrides;
  const auto videos = VideoSettings::read(folder, vision, max_pixels);
  const nlohmann::ordered_json empty = nlohmann::ordered_json::object();
  if (nlohmann::ordered_json probe = empty;
      max_pixels && has_videos && !write_frame_pixel_limit(probe, videos, vision)) {
    overrides.unsaved_settings.push_back(fmt::format(
        "{}={}: for video frames, transformers' Qwen3VLVideoProcessor supports only multiples of {} pixels, at least "
        "1.05 times size.shortest_edge",
        keys::data::kImageMaxPixels, *max_pixels, vision.pixels_per_token_side() * vision.pixels_per_token_side()));
  }
  overrides.edit_video_settings = [=, fps = settings.video_fps, max_frames = settings.video_max_frames](auto& file) {
    if (max_pixels) write_frame_pixel_limit(file, videos, vision);
    if (saves_video_sampling) qwen2_vl::write_frame_sampling(file, videos.limits, fps, max_frames);
  };
  return overrides;
}

ContextLength get_context_length(const nlohmann::json& config_json, const std::filesystem::path& folder) {
  return {.tokens = Config::from_json(config_json, folder).text.max_positions, .is_hard_limit = false};
}

double num_parameters(const nlohmann::json& config_json, const std::filesystem::path& folder) {
  const Config config = Config::from_json(config_json, folder);
  return config.vision.num_parameters() + config.text.num_parameters();
}

}  // namespace

Family make_family() {
  return {
      .model_types = {"qwen3_vl"},
      .build = build,
      .load_processor = load_processor,
      .compute_image_sample_shape = compute_image_sample_shape,
      .get_context_length = get_context_length,
      .num_parameters = num_parameters,
      .compute_video_sample_shape = compute_video_sample_shape,
      .make_processor_overrides = make_processor_overrides,
      .unsupported_model_types = {{"qwen3_vl_moe", "a mixture of experts; the dense Qwen3-VL are 2B, 4B, 8B and 32B"}}};
}

}  // namespace vlmtrain::models::qwen3_vl
