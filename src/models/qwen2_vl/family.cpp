#include "models/qwen2_vl/family.h"

#include <algorithm>

#include "models/processing/load_chat_template.h"
#include "models/processing/processor_config.h"
#include "models/qwen2_vl/config.h"
#include "models/qwen2_vl/image_processor.h"
#include "models/qwen2_vl/model.h"
#include "models/qwen2_vl/processor.h"
#include "models/qwen2_vl/video_processor.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/io/checkpoint.h"

namespace vlmtrain::models::qwen2_vl {

namespace {

std::unique_ptr<VisionLanguageModel> build(const nlohmann::json& config_json, const std::filesystem::path& folder,
                                           const nn::ParameterSettings& settings) {
  const Config config = Config::from_json(config_json, folder);
  return std::make_unique<Model>(config, WeightNames::of(io::checkpoint_tensor_names(folder)),
                                 read_image_settings(folder, config.vision, std::nullopt).normalization, settings);
}

text::MediumText medium_text(std::string_view pad) {
  return {.block = vision_block(pad), .token = std::string(pad)};
}

std::unique_ptr<models::Processor> load_processor(const nlohmann::json& config_json,
                                                  const std::filesystem::path& folder,
                                                  const ProcessorSettings& settings) {
  const Config config = Config::from_json(config_json, folder);
  const auto images = read_image_settings(folder, config.vision, settings.image_max_pixels);
  const auto videos = VideoSettings::read(folder, config.vision, settings.image_max_pixels);
  report_frame_rate(folder, settings.video_fps);
  text::Tokenizer tokenizer = load_tokenizer(folder);
  text::ChatTemplate chat_template =
      load_chat_template(folder, tokenizer, settings,
                         {.fallback = "qwen2_vl", .image = medium_text(kImagePad), .video = medium_text(kVideoPad)});
  return std::make_unique<Processor>(config, images, videos, std::move(tokenizer), std::move(chat_template), settings);
}

data::SampleShape shape_with_marks(const data::PatchGrid& grid, const VisionConfig& vision) {
  data::SampleShape shape = shape_of(grid, vision);
  shape.tokens += 2;  // kVisionStart and kVisionEnd
  return shape;
}

data::SampleShape image_shape(const nlohmann::json& config_json, const std::filesystem::path& folder,
                              image::ImageSize size, std::optional<int64_t> max_pixels) {
  const VisionConfig vision = Config::from_json(config_json, folder).vision;
  const image::ImageSize resized = resized_size(size, read_image_settings(folder, vision, max_pixels), vision);
  return shape_with_marks(grid_of(1, resized, vision), vision);
}

data::SampleShape video_shape(const nlohmann::json& config_json, const std::filesystem::path& folder,
                              const image::VideoInfo& video, const ProcessorSettings& settings) {
  const VisionConfig vision = Config::from_json(config_json, folder).vision;
  VideoSettings videos = VideoSettings::read(folder, vision, settings.image_max_pixels);
  videos.limits.max_frames = std::min(videos.limits.max_frames, settings.video_max_frames);
  const auto frames = std::ssize(videos.frames_of(video, settings.video_fps, vision));
  const image::ImageSize resized = resized_size(video.size, videos.pixels_of(frames, vision), vision);
  auto shape = shape_with_marks(grid_of(frames, resized, vision), vision);
  shape.videos = 1;
  shape.video_frames = frames;
  return shape;
}

ProcessorChanges processor_changes(const nlohmann::json& config_json, const std::filesystem::path& folder,
                                   const ProcessorSettings& settings, bool has_videos) {
  const VisionConfig vision = Config::from_json(config_json, folder).vision;
  const bool has_limit = settings.image_max_pixels.has_value();
  const bool has_sampling = has_videos || !has_usual_sampling(settings);
  ProcessorChanges changes{.videos_need_file = has_sampling, .video_processor_type = "Qwen2VLVideoProcessor"};
  if (has_limit) {
    changes.images = [budget = read_image_settings(folder, vision, settings.image_max_pixels).budget](auto& file) {
      put_budget(file, budget);
    };
  }
  if (!has_limit && !has_sampling) return changes;
  const auto videos = VideoSettings::read(folder, vision, settings.image_max_pixels);
  changes.videos = [=, fps = settings.video_fps, most = settings.video_max_frames](auto& file) {
    if (has_limit) put_budget(file, videos.pixels.budget);
    if (has_sampling) put_sampling(file, videos.limits, fps, most);
  };
  return changes;
}

ContextLength context_length(const nlohmann::json& config_json, const std::filesystem::path& folder) {
  return {.tokens = Config::from_json(config_json, folder).text.max_positions, .refuses_longer = false};
}

double elements(const nlohmann::json& config_json, const std::filesystem::path& folder) {
  const Config config = Config::from_json(config_json, folder);
  return config.vision.elements() + config.text.elements();
}

}  // namespace

Family family() {
  return {.model_types = {"qwen2_vl", "qwen2_5_vl"},
          .build = build,
          .load_processor = load_processor,
          .image_shape = image_shape,
          .context_length = context_length,
          .elements = elements,
          .video_shape = video_shape,
          .processor_changes = processor_changes};
}

}  // namespace vlmtrain::models::qwen2_vl
