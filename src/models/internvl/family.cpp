#include "models/family.h"

#include "models/internvl/config.h"
#include "models/internvl/processor.h"
#include "models/processing/chat_encoder.h"
#include "models/processing/preprocessor_config.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/io/checkpoint.h"
#include "vlmtrain/io/json.h"

namespace vlmtrain::models::internvl {

namespace {

/// Throws UserError if processor_config.json has another number of tokens per tile than
/// config.json; transformers would format the text with it.
void check_processor_config(const Config& config, const std::filesystem::path& folder) {
  const auto path = folder / "processor_config.json";
  if (!std::filesystem::exists(path)) return;
  const auto tokens =
      io::get_or<int64_t>(io::read_json(path), "image_seq_length", config.image_tokens_per_tile(), path.string());
  if (tokens != config.image_tokens_per_tile()) {
    throw data_error("{}: image_seq_length is {}, but the model of config.json produces {} features per tile",
                     path.string(), tokens, config.image_tokens_per_tile());
  }
}

std::unique_ptr<models::Processor> load_processor(const nlohmann::json& config_json,
                                                  const std::filesystem::path& folder,
                                                  const ProcessorSettings& settings) {
  const Config config = Config::from_json(config_json, folder);
  check_processor_config(config, folder);
  const ImageProcessor image_processor(read_image_settings(folder, config.vision), settings.image_max_pixels);
  const auto video_settings = VideoSettings::read(folder, config.vision, settings);
  warn_if_frame_rate_differs(folder, settings.video_fps);
  text::Tokenizer tokenizer = load_tokenizer(folder);
  const text::MediaMarkup image{std::string(kImageToken), std::string(kImageToken)};
  const text::MediaMarkup video{std::string(text::kVideoPlaceholder), std::string(text::kVideoPlaceholder)};
  text::ChatTemplate chat_template = load_chat_template(
      folder, tokenizer, settings, {.fallback = "internvl", .image_markup = image, .video_markup = video});
  return make_processor(config, image_processor, video_settings, std::move(tokenizer), std::move(chat_template),
                        settings);
}

data::SampleShape make_tile_sample_shape(int64_t tiles, int64_t tokens, const Config& config) {
  return {.tokens = tokens,
          .image_tokens = tiles * config.image_tokens_per_tile(),
          .num_images = 1,
          .pixel_rows = tiles,
          .row = {.height = config.vision.image_size, .width = config.vision.image_size}};
}

data::SampleShape compute_image_sample_shape(const nlohmann::json& config_json, const std::filesystem::path& folder,
                                             image::ImageSize size, std::optional<int64_t> max_pixels) {
  constexpr int64_t kNumMarkerTokens = 2;  // <img> and </img>
  const Config config = Config::from_json(config_json, folder);
  check_processor_config(config, folder);
  const ImageProcessor image_processor(read_image_settings(folder, config.vision), max_pixels);
  const int64_t tiles = image_processor.compute_grid(size, std::nullopt).num_tiles();
  return make_tile_sample_shape(tiles, tiles * config.image_tokens_per_tile() + kNumMarkerTokens, config);
}

data::SampleShape compute_video_sample_shape(const nlohmann::json& config_json, const std::filesystem::path& folder,
                                             const image::VideoInfo& video, const ProcessorSettings& settings) {
  const Config config = Config::from_json(config_json, folder);
  check_processor_config(config, folder);
  const auto frames = std::ssize(VideoSettings::read(folder, config.vision, settings).sample_frame_indices(video));
  auto shape =
      make_tile_sample_shape(frames, count_video_text_tokens(frames, config.image_tokens_per_tile(), folder), config);
  shape.num_images = 0;
  shape.num_videos = 1;
  shape.video_frames = frames;
  return shape;
}

ProcessorOverrides make_processor_overrides(const nlohmann::json& config_json, const std::filesystem::path& folder,
                                            const ProcessorSettings& settings, bool has_videos) {
  const Config config = Config::from_json(config_json, folder);
  ProcessorOverrides overrides{.video_processor_type = "InternVLVideoProcessor"};
  if (settings.image_max_pixels) {
    const ImageProcessor image_processor(read_image_settings(folder, config.vision), settings.image_max_pixels);
    overrides.edit_image_settings = [min_cells = image_processor.min_cells(),
                                     max_cells = image_processor.max_cells()](auto& file) {
      file["min_patches"] = min_cells;
      file["max_patches"] = max_cells;
    };
  }
  overrides.creates_video_config = has_videos || !has_default_video_sampling(settings);
  if (!overrides.creates_video_config) return overrides;
  const auto video_settings = VideoSettings::read(folder, config.vision, settings);
  overrides.edit_video_settings = [video_settings](auto& file) {
    file["do_sample_frames"] = true;
    if (video_settings.num_frames) {
      file["num_frames"] = std::min(*video_settings.num_frames, video_settings.max_frames);
    } else {
      file["fps"] = video_settings.sampling_fps;
    }
  };
  if (!video_settings.num_frames && settings.video_max_frames != ProcessorSettings().video_max_frames) {
    overrides.unsaved_settings.push_back(
        fmt::format("{}={}: transformers' InternVLVideoProcessor cannot combine a frame limit with a frame rate",
                    keys::data::kVideoMaxFrames, settings.video_max_frames));
  }
  return overrides;
}

ContextLength get_context_length(const nlohmann::json& config_json, const std::filesystem::path& folder) {
  const Config config = Config::from_json(config_json, folder);
  return {.tokens = config.text.max_positions, .is_hard_limit = config.is_hard_limit};
}

double num_parameters(const nlohmann::json& config_json, const std::filesystem::path& folder) {
  return Config::from_json(config_json, folder).num_parameters();
}

}  // namespace

Family make_family() {
  return {.model_types = {"internvl"},
          .build = build,
          .load_processor = load_processor,
          .compute_image_sample_shape = compute_image_sample_shape,
          .get_context_length = get_context_length,
          .num_parameters = num_parameters,
          .compute_video_sample_shape = compute_video_sample_shape,
          .make_processor_overrides = make_processor_overrides,
          .unsupported_model_types = {
              {"internvl_chat",
               "this is InternVL in its original layout; use the repository in transformers' layout, "
               "whose name ends in -hf or -HF: OpenGVLab/InternVL3-8B-hf, OpenGVLab/InternVL3_5-8B-HF"}}};
}

}  // namespace vlmtrain::models::internvl
