#include "models/idefics3/family.h"

#include "models/idefics3/config.h"
#include "models/idefics3/image_processor.h"
#include "models/idefics3/image_tokens.h"
#include "models/idefics3/model.h"
#include "models/idefics3/processor.h"
#include "models/idefics3/video_processor.h"
#include "models/idefics3/video_text.h"
#include "models/processing/load_chat_template.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::models::idefics3 {

namespace {

ImageProcessorSettings image_settings(const std::filesystem::path& folder) {
  const auto config = PreprocessorConfig::find_in(folder);
  if (config) return read_image_processor_settings(*config);
  throw data_error("{}: neither preprocessor_config.json nor a section image_processor in processor_config.json",
                   folder.string());
}

Config read_config(const nlohmann::json& config, const std::filesystem::path& folder) {
  return Config::from_json(config, (folder / "config.json").string());
}

ImageProcessor image_processor(const Config& config, const std::filesystem::path& folder,
                               std::optional<int64_t> max_pixels) {
  const ImageProcessorSettings settings = image_settings(folder);
  if (settings.tile_size != config.vision.image_size) {
    throw data_error(
        "preprocessor_config.json cuts tiles of {} pixels (max_image_size) and config.json's vision tower takes {} "
        "(image_size); they must be equal",
        settings.tile_size, config.vision.image_size);
  }
  return ImageProcessor(settings, max_pixels);
}

std::unique_ptr<VisionLanguageModel> build(const nlohmann::json& config, const std::filesystem::path& folder,
                                           const nn::ParameterSettings& settings) {
  return std::make_unique<Model>(read_config(config, folder), image_settings(folder).normalization, settings);
}

std::unique_ptr<models::Processor> load_processor(const nlohmann::json& config, const std::filesystem::path& folder,
                                                  const ProcessorSettings& settings,
                                                  const std::optional<VideoSettings>& videos) {
  const Config read = read_config(config, folder);
  const ImageProcessor images = image_processor(read, folder, settings.image_max_pixels);
  FamilyTemplate family{.fallback = "smolvlm"};
  if (videos) {
    if (videos->frame.normalization != images.settings().normalization) {
      throw data_error("{}: image_mean, image_std and rescale_factor of videos differ from those of images",
                       folder.string());
    }
    family.video = {std::string(text::kVideoMark), std::string(text::kVideoMark)};
  }
  text::Tokenizer tokenizer = load_tokenizer(folder);
  text::ChatTemplate chat_template = load_chat_template(folder, tokenizer, settings, family);
  return std::make_unique<Processor>(read, images, videos, std::move(tokenizer), std::move(chat_template), settings);
}

std::unique_ptr<models::Processor> load_processor_of_pictures(const nlohmann::json& config,
                                                              const std::filesystem::path& folder,
                                                              const ProcessorSettings& settings) {
  return load_processor(config, folder, settings, /*videos=*/std::nullopt);
}

std::unique_ptr<models::Processor> load_processor_of_videos(const nlohmann::json& config,
                                                            const std::filesystem::path& folder,
                                                            const ProcessorSettings& settings) {
  const int64_t tile_size = read_config(config, folder).vision.image_size;
  return load_processor(config, folder, settings, VideoSettings::find(folder, tile_size, settings));
}

data::SampleShape video_shape(const nlohmann::json& config, const std::filesystem::path& folder,
                              const image::VideoInfo& video, const ProcessorSettings& settings) {
  const Config read = read_config(config, folder);
  const auto videos = VideoSettings::find(folder, read.vision.image_size, settings);
  if (!videos) {
    throw usage_error(
        "a video of {} frames: this checkpoint takes no videos, since the file of its processor has no video_sampling; "
        "take one of SmolVLM2, or of another family that does ({}), or images instead",
        video.frames, families_with_videos());
  }
  const VideoText text = text_of_video(*videos, video, read.image_tokens_per_tile());
  const int64_t side = read.vision.image_size;
  return {.tokens = count_tokens(text.text, folder),
          .image_tokens = text.frames * read.image_tokens_per_tile(),
          .images = 1,
          .pixel_rows = text.frames,
          .row = {.height = side, .width = side},
          .videos = 1,
          .video_frames = text.frames};
}

data::SampleShape image_shape(const nlohmann::json& config, const std::filesystem::path& folder, image::ImageSize size,
                              std::optional<int64_t> max_pixels) {
  const Config read = read_config(config, folder);
  const TileGrid grid = image_processor(read, folder, max_pixels).grid_for(size);
  const int64_t side = read.vision.image_size;
  return {.tokens = count_image_text(grid, read.image_tokens_per_tile(), folder),
          .image_tokens = grid.tiles() * read.image_tokens_per_tile(),
          .images = 1,
          .pixel_rows = grid.tiles(),
          .row = {.height = side, .width = side}};
}

ContextLength context_length(const nlohmann::json& config, const std::filesystem::path& folder) {
  return {.tokens = read_config(config, folder).text.max_positions, .refuses_longer = false};
}

double elements(const nlohmann::json& config_json, const std::filesystem::path& folder) {
  const Config config = read_config(config_json, folder);
  return config.vision.elements() + config.text.elements();
}

}  // namespace

Family family() {
  return {.model_types = {"idefics3"},
          .build = build,
          .load_processor = load_processor_of_pictures,
          .image_shape = image_shape,
          .context_length = context_length,
          .elements = elements};
}

Family smolvlm_family() {
  Family smolvlm = family();
  smolvlm.model_types = {"smolvlm"};
  smolvlm.load_processor = load_processor_of_videos;
  smolvlm.video_shape = video_shape;
  return smolvlm;
}

}  // namespace vlmtrain::models::idefics3
