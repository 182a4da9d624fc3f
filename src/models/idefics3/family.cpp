#include "models/idefics3/family.h"

#include "models/idefics3/config.h"
#include "models/idefics3/image_processor.h"
#include "models/idefics3/image_tokens.h"
#include "models/idefics3/model.h"
#include "models/idefics3/processor.h"
#include "models/idefics3/video_processor.h"
#include "models/idefics3/video_text.h"
#include "models/processing/load_chat_template.h"
#include "models/processing/processor_config.h"
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
  check_image_tokens(folder, "image_seq_len", read.image_tokens_per_tile());
  const ImageProcessor images = image_processor(read, folder, settings.image_max_pixels);
  FamilyTemplate family{.fallback = "smolvlm"};
  if (videos) family.video = {std::string(text::kVideoMark), std::string(text::kVideoMark)};
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

/// Of images. data.image_max_pixels bounds the cells of an image together, and transformers the longer side alone.
void limit_tiles(const ImageProcessorSettings& images, std::optional<int64_t> max_pixels, ProcessorChanges& changes) {
  if (!max_pixels || !images.do_image_splitting) return;
  const int64_t tile = images.tile_size, square = tile * tile;
  const int64_t along = (images.longest_edge + tile - 1) / tile;
  if (*max_pixels >= along * along * square) return;
  if (*max_pixels >= 2 * square) {
    changes.not_saved.push_back(
        fmt::format("data.image_max_pixels={}: transformers' processor limits the longer side of an image alone "
                    "(size.longest_edge), so that it cuts some images into more tiles than this run, up to {}",
                    *max_pixels, along * along + 1));
    return;
  }
  changes.images = [tile](auto& file) { file["size"] = {{"longest_edge", tile}}; };
}

ProcessorChanges processor_changes(const nlohmann::json& config, const std::filesystem::path& folder,
                                   const ProcessorSettings& settings, bool /*has_videos*/) {
  const Config read = read_config(config, folder);
  ProcessorChanges changes;
  limit_tiles(image_processor(read, folder, settings.image_max_pixels).settings(), settings.image_max_pixels, changes);
  return changes;
}

void put_sampling(nlohmann::ordered_json& file, const VideoSettings& videos) {
  const bool has_section = file.contains("video_sampling") && file["video_sampling"].is_object();
  nlohmann::ordered_json& sampling = has_section ? file["video_sampling"] : file;
  sampling["fps"] = videos.fps;
  sampling[has_section ? "max_frames" : "num_frames"] = videos.most_frames;
}

ProcessorChanges processor_changes_with_videos(const nlohmann::json& config, const std::filesystem::path& folder,
                                               const ProcessorSettings& settings, bool has_videos) {
  ProcessorChanges changes = processor_changes(config, folder, settings, has_videos);
  changes.video_processor_type = "SmolVLMVideoProcessor";
  const auto videos = VideoSettings::find(folder, read_config(config, folder).vision.image_size, settings);
  if (!videos) return changes;
  const bool has_sampling = has_videos || !has_usual_sampling(settings);
  // What is said of images in a file that videos share would hold for frames, too.
  changes.videos_need_file = has_sampling || static_cast<bool>(changes.images);
  if (!changes.videos_need_file) return changes;
  changes.videos = [=](auto& file) {
    if (!has_sampling) return;
    put_sampling(file, *videos);
    file["do_sample_frames"] = true;
  };
  // Older versions of transformers read it there.
  changes.images = [=, limit = changes.images](auto& file) {
    if (limit) limit(file);
    if (has_sampling && file.contains("video_sampling") && file["video_sampling"].is_object()) {
      put_sampling(file, *videos);
    }
  };
  return changes;
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
          .elements = elements,
          .processor_changes = processor_changes};
}

Family smolvlm_family() {
  Family smolvlm = family();
  smolvlm.model_types = {"smolvlm"};
  smolvlm.load_processor = load_processor_of_videos;
  smolvlm.video_shape = video_shape;
  smolvlm.processor_changes = processor_changes_with_videos;
  return smolvlm;
}

}  // namespace vlmtrain::models::idefics3
