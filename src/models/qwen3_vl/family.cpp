#include "models/qwen3_vl/family.h"

#include <algorithm>

#include "models/processing/load_chat_template.h"
#include "models/processing/processor_config.h"
#include "models/qwen3_vl/config.h"
#include "models/qwen3_vl/model.h"
#include "models/qwen3_vl/processor.h"
#include "models/qwen3_vl/video_processor.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/text/read_tokenizer.h"

namespace vlmtrain::models::qwen3_vl {

namespace {

std::unique_ptr<VisionLanguageModel> build(const nlohmann::json& config_json, const std::filesystem::path& folder,
                                           const nn::ParameterSettings& settings) {
  const Config config = Config::from_json(config_json, folder);
  return std::make_unique<Model>(
      config, qwen2_vl::read_image_settings(folder, config.vision, std::nullopt).normalization, settings);
}

/// As the checkpoints were trained, the time stamps and frames take the place of what the template writes for a video;
/// transformers 5 puts them into it.
text::MediumText video_block(data::VideoLayout layout) {
  const std::string block = qwen2_vl::vision_block(qwen2_vl::kVideoPad);
  return {.block = block, .token = layout == data::VideoLayout::kReleased ? block : std::string(qwen2_vl::kVideoPad)};
}

std::unique_ptr<models::Processor> load_processor(const nlohmann::json& config_json,
                                                  const std::filesystem::path& folder,
                                                  const ProcessorSettings& settings) {
  const Config config = Config::from_json(config_json, folder);
  const auto images = qwen2_vl::read_image_settings(folder, config.vision, settings.image_max_pixels);
  const auto videos = VideoSettings::read(folder, config.vision, settings.image_max_pixels);
  report_frame_rate(folder, settings.video_fps);
  text::Tokenizer tokenizer = load_tokenizer(folder);
  text::ChatTemplate chat_template = load_chat_template(
      folder, tokenizer, settings,
      {.fallback = "chatml",
       .image = {.block = qwen2_vl::vision_block(qwen2_vl::kImagePad), .token = std::string(qwen2_vl::kImagePad)},
       .video = video_block(settings.video_layout)});
  return std::make_unique<Processor>(config, images, videos, std::move(tokenizer), std::move(chat_template), settings);
}

constexpr int64_t kMarks = 2;  // <|vision_start|> and <|vision_end|>

data::SampleShape image_shape(const nlohmann::json& config_json, const std::filesystem::path& folder,
                              image::ImageSize size, std::optional<int64_t> max_pixels) {
  const VisionConfig vision = Config::from_json(config_json, folder).vision;
  const auto settings = qwen2_vl::read_image_settings(folder, vision, max_pixels);
  auto shape = shape_of(qwen2_vl::grid_of(1, resized_size(size, settings, vision), vision), vision);
  shape.tokens += kMarks;
  return shape;
}

/// Of the tokens between frames: exact with a tokenizer; without one as Qwen's counts them, which has a token for each
/// digit, one for " seconds" and one for each other character.
int64_t count_stamps(const std::vector<std::string>& stamps, const std::filesystem::path& folder) {
  constexpr std::string_view kUnit = " seconds";
  const auto file = folder / "tokenizer.json";
  if (std::filesystem::exists(file)) {
    return std::ssize(text::read_tokenizer(folder).encode(video_text(stamps, 0)).ids);
  }
  int64_t tokens = 0;
  for (const std::string& stamp : stamps) tokens += std::ssize(stamp) - std::ssize(kUnit) + 1 + kMarks;
  return tokens;
}

data::SampleShape video_shape(const nlohmann::json& config_json, const std::filesystem::path& folder,
                              const image::VideoInfo& video, const ProcessorSettings& settings) {
  const VisionConfig vision = Config::from_json(config_json, folder).vision;
  VideoSettings videos = VideoSettings::read(folder, vision, settings.image_max_pixels);
  videos.limits.max_frames = std::min(videos.limits.max_frames, settings.video_max_frames);
  const double fps = video.fps > 0 ? video.fps : settings.video_fps;
  const auto taken = videos.frames_of(video, settings.video_fps);
  const auto frames = std::ssize(taken);
  const auto resized = videos.frame_size(frames, video.size, std::nullopt, vision);
  auto shape = shape_of(qwen2_vl::grid_of(frames, resized, vision), vision);
  shape.tokens += count_stamps(time_stamps(taken, fps, vision.temporal_patch_size), folder);
  if (settings.video_layout == data::VideoLayout::kTransformers5) shape.tokens += kMarks;
  shape.videos = 1;
  shape.video_frames = frames;
  return shape;
}

ProcessorChanges processor_changes(const nlohmann::json& config_json, const std::filesystem::path& folder,
                                   const ProcessorSettings& settings, bool has_videos) {
  const VisionConfig vision = Config::from_json(config_json, folder).vision;
  const auto& most = settings.image_max_pixels;
  const bool has_sampling = has_videos || !has_usual_sampling(settings);
  ProcessorChanges changes{.videos_need_file = has_sampling, .video_processor_type = "Qwen3VLVideoProcessor"};
  if (most) {
    changes.images = [budget = qwen2_vl::read_image_settings(folder, vision, most).budget](auto& file) {
      qwen2_vl::put_budget(file, budget);
    };
  }
  if (!most && !has_sampling) return changes;
  const auto videos = VideoSettings::read(folder, vision, most);
  const nlohmann::ordered_json none = nlohmann::ordered_json::object();
  if (nlohmann::ordered_json trial = none; most && has_videos && !put_frame_limit(trial, videos, vision)) {
    changes.not_saved.push_back(fmt::format(
        "data.image_max_pixels={}: of a frame of a video, transformers' Qwen3VLVideoProcessor can be told whole tokens "
        "of {} pixels, and no less than 1.05 times size.shortest_edge",
        *most, vision.pixels_per_token_side() * vision.pixels_per_token_side()));
  }
  changes.videos = [=, fps = settings.video_fps, most_frames = settings.video_max_frames](auto& file) {
    if (most) put_frame_limit(file, videos, vision);
    if (has_sampling) qwen2_vl::put_sampling(file, videos.limits, fps, most_frames);
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
  return {.model_types = {"qwen3_vl"},
          .build = build,
          .load_processor = load_processor,
          .image_shape = image_shape,
          .context_length = context_length,
          .elements = elements,
          .video_shape = video_shape,
          .processor_changes = processor_changes,
          .not_supported = {{"qwen3_vl_moe", "a mixture of experts; the dense Qwen3-VL are 2B, 4B, 8B and 32B"}}};
}

}  // namespace vlmtrain::models::qwen3_vl
