#include "models/family.h"

#include <algorithm>

#include "models/processing/chat_encoder.h"
#include "models/processing/chat_template.h"
#include "models/processing/preprocessor_config.h"
#include "models/qwen2_vl/config.h"
#include "models/qwen2_vl/image_processor.h"
#include "models/qwen2_vl/media_readers.h"
#include "models/qwen2_vl/processor.h"
#include "models/qwen2_vl/video_processor.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/io/checkpoint.h"

namespace vlmtrain::models::qwen2_vl {

namespace {

text::MediaMarkup make_media_markup(std::string_view pad) {
  return {.block = format_vision_block(pad), .token = std::string(pad)};
}

std::unique_ptr<models::Processor> load_processor(const nlohmann::json& config_json,
                                                  const std::filesystem::path& folder,
                                                  const ProcessorSettings& settings) {
  const Config config = Config::from_json(config_json, folder);
  const auto images = read_image_settings(folder, config.vision, settings.image_max_pixels);
  const auto videos = VideoSettings::read(folder, config.vision, settings.image_max_pixels);
  warn_if_frame_rate_differs(folder, settings.video_fps);
  text::Tokenizer tokenizer = load_tokenizer(folder);
  text::ChatTemplate chat_template = load_chat_template(folder, tokenizer, settings,
                                                        {.fallback = "qwen2_vl",
                                                         .image_markup = make_media_markup(kImagePad),
                                                         .video_markup = make_media_markup(kVideoPad)});
  return make_processor(config, images, videos, std::move(tokenizer), std::move(chat_template), settings);
}

data::SampleShape make_sample_shape_with_markers(const data::PatchGrid& grid, const VisionConfig& vision) {
  data::SampleShape shape = make_sample_shape(grid, vision);
  shape.tokens += 2;  // kVisionStart and kVisionEnd
  return shape;
}

data::SampleShape compute_image_sample_shape(const nlohmann::json& config_json, const std::filesystem::path& folder,
                                             image::ImageSize size, std::optional<int64_t> max_pixels) {
  const VisionConfig vision = Config::from_json(config_json, folder).vision;
  const image::ImageSize resized = compute_resized_size(size, read_image_settings(folder, vision, max_pixels), vision);
  return make_sample_shape_with_markers(compute_grid(1, resized, vision), vision);
}

data::SampleShape compute_video_sample_shape(const nlohmann::json& config_json, const std::filesystem::path& folder,
                                             const image::VideoInfo& video, const ProcessorSettings& settings) {
  const VisionConfig vision = Config::from_json(config_json, folder).vision;
  VideoSettings videos = VideoSettings::read(folder, vision, settings.image_max_pixels);
  videos.limits.max_frames = std::min(videos.limits.max_frames, settings.video_max_frames);
  const auto frames = std::ssize(videos.select_frames(video, settings.video_fps, vision));
  const image::ImageSize resized =
      compute_resized_size(video.size, videos.compute_frame_settings(frames, vision), vision);
  auto shape = make_sample_shape_with_markers(compute_grid(frames, resized, vision), vision);
  shape.num_images = 0;
  shape.num_videos = 1;
  shape.video_frames = frames;
  return shape;
}

ProcessorOverrides make_processor_overrides(const nlohmann::json& config_json, const std::filesystem::path& folder,
                                            const ProcessorSettings& settings, bool has_videos) {
  const VisionConfig vision = Config::from_json(config_json, folder).vision;
  const bool has_pixel_limit = settings.image_max_pixels.has_value();
  const bool saves_video_sampling = has_videos || !has_default_video_sampling(settings);
  ProcessorOverrides overrides{.creates_video_config = saves_video_sampling,
                               .video_processor_type = "Qwen2VLVideoProcessor"};
  if (has_pixel_limit) {
    overrides.edit_image_settings = [budget = read_image_settings(folder, vision, settings.image_max_pixels).budget](
                                        auto& file) { write_pixel_budget(file, budget); };
  }
  if (!has_pixel_limit && !saves_video_sampling) return overrides;
  const auto videos = VideoSettings::read(folder, vision, settings.image_max_pixels);
  overrides.edit_video_settings = [=, fps = settings.video_fps, max_frames = settings.video_max_frames](auto& file) {
    if (has_pixel_limit) write_pixel_budget(file, videos.pixels.budget);
    if (saves_video_sampling) write_frame_sampling(file, videos.limits, fps, max_frames);
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
  return {.model_types = {"qwen2_vl", "qwen2_5_vl"},
          .build = build,
          .load_processor = load_processor,
          .compute_image_sample_shape = compute_image_sample_shape,
          .get_context_length = get_context_length,
          .num_parameters = num_parameters,
          .compute_video_sample_shape = compute_video_sample_shape,
          .make_processor_overrides = make_processor_overrides};
}

}  // namespace vlmtrain::models::qwen2_vl
