#include "models/idefics3/family.h"

#include <cstdint>

#include "models/checkpoints/config_checks.h"
#include "models/family.h"
#include "models/idefics3/image_processor.h"
#include "models/idefics3/processor.h"
#include "models/network/layers.h"
#include "models/network/llama.h"
#include "models/network/vision_transformer.h"
#include "models/processing/chat_encoder.h"
#include "models/processing/preprocessor_config.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/image/pixel_transforms.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/models/model.h"

namespace vlmtrain::models::idefics3 {

Config Config::from_json(const nlohmann::json& json, const std::string& source) {
  for (const char* section : {"vision_config", "text_config"}) {
    if (!json.contains(section) || !json[section].is_object()) {
      throw data_error("{}: has no section {}; use the config.json of an Idefics3 or SmolVLM checkpoint", source,
                       section);
    }
  }
  const auto& text = json["text_config"];
  const auto text_model_type = io::get_or<std::string>(text, "model_type", "llama", source);
  if (text_model_type != "llama") {
    throw data_error("{}: text model {} is not supported in Idefics3; supported: llama", source, text_model_type);
  }
  Config config;
  config.vision = read_idefics3_vision_config(json["vision_config"], source + " (vision_config)");
  config.text = LlamaConfig::from_json(text, source + " (text_config)");
  config.scale_factor = io::get_or<int64_t>(json, "scale_factor", config.scale_factor, source);
  config.image_token_id = io::get_or<int64_t>(json, "image_token_id", config.image_token_id, source);
  // transformers ignores tie_word_embeddings in text_config.
  config.text.tie_word_embeddings = io::get_or<bool>(json, "tie_word_embeddings", false, source);
  if (config.scale_factor < 1 || config.vision.patches_per_side() % config.scale_factor != 0) {
    throw config_error("{}: {} patches per side are not a multiple of scale_factor {}", source,
                       config.vision.patches_per_side(), config.scale_factor);
  }
  if (config.image_token_id < 0 || config.image_token_id >= config.text.vocab_size) {
    throw config_error("{}: image_token_id {} is not in the vocabulary of {}", source, config.image_token_id,
                       config.text.vocab_size);
  }
  return config;
}

namespace {

using nn::Component;
using nn::ParameterScope;

/// SigLIP tower, pixel-shuffle connector and Llama text model. Parameter names are those of
/// transformers.
class Model final : public VisionLanguageModel {
 public:
  Model(Config config, image::Normalization normalization, nn::ParameterSettings settings);

  ImageFeatures get_image_features(const VisionInput& vision, bool with_patch_features) const override;
  ModelOutput compute_hidden_states(const data::MicroBatch& batch, const ImageFeatures& image_features,
                                    const OutputRequest& request, nn::GenerationCache* cache) const override;
  nn::OutputProjection output_projection() const override { return text_.output_projection(); }
  int64_t num_vision_blocks() const override { return tower_.num_blocks(); }
  int64_t num_language_blocks() const override { return text_.num_blocks(); }

 private:
  Config config_;
  image::Normalization normalization_;
  VisionTransformer tower_;
  nn::Linear projection_;
  CausalLlama text_;
};

Model::Model(Config config, image::Normalization normalization, nn::ParameterSettings settings)
    : VisionLanguageModel(std::move(settings)),
      config_(std::move(config)),
      normalization_(normalization),
      tower_(ParameterScope(parameters(), Component::kVisionTower, "model.vision_model"), config_.vision),
      projection_(ParameterScope(parameters(), Component::kProjector, "model.connector.modality_projection.proj"),
                  config_.vision.hidden_size * config_.scale_factor * config_.scale_factor, config_.text.hidden_size,
                  /*bias=*/false),
      text_(ParameterScope(parameters(), Component::kLanguageModel, "model.text_model"), config_.text,
            ParameterScope(parameters(), Component::kLanguageModel, "lm_head")) {}

ImageFeatures Model::get_image_features(const VisionInput& vision, bool with_patch_features) const {
  const at::Tensor patches = tower_({vision.pixel_values, normalization_}, recompute_block_counts().vision);
  return {.features = projection_(pixel_shuffle(patches, config_.vision.patches_per_side(), config_.scale_factor)),
          .patch_features = with_patch_features ? patches : at::Tensor()};
}

ModelOutput Model::compute_hidden_states(const data::MicroBatch& batch, const ImageFeatures& image_features,
                                         const OutputRequest& request, nn::GenerationCache* cache) const {
  return text_.compute_hidden_states(batch, image_features, request, recompute_block_counts().language_counts(), cache);
}

Config read_config(const nlohmann::json& config, const std::filesystem::path& folder) {
  return Config::from_json(config, (folder / "config.json").string());
}

ImageProcessor make_image_processor(const Config& config, const std::filesystem::path& folder,
                                    std::optional<int64_t> max_pixels) {
  const ImageProcessorSettings settings = load_image_processor_settings(folder);
  if (settings.tile_size != config.vision.image_size) {
    throw data_error(
        "{}: makes tiles of {} pixels (max_image_size), but config.json's vision tower needs {} (image_size); they "
        "must be equal",
        find_settings_copies(folder, MediaRole::kImages).front().name, settings.tile_size, config.vision.image_size);
  }
  return ImageProcessor(settings, max_pixels);
}

std::unique_ptr<models::Processor> load_processor(const nlohmann::json& config, const std::filesystem::path& folder,
                                                  const ProcessorSettings& settings,
                                                  const std::optional<VideoSettings>& videos) {
  const Config model_config = read_config(config, folder);
  check_num_image_tokens(folder, "image_seq_len", model_config.image_tokens_per_tile());
  const ImageProcessor images = make_image_processor(model_config, folder, settings.image_max_pixels);
  FamilyTemplateSettings family{.fallback = "smolvlm"};
  if (videos) family.video_markup = {std::string(text::kVideoPlaceholder), std::string(text::kVideoPlaceholder)};
  text::Tokenizer tokenizer = load_tokenizer(folder);
  text::ChatTemplate chat_template = load_chat_template(folder, tokenizer, settings, family);
  return make_processor(model_config, images, videos, std::move(tokenizer), std::move(chat_template), settings);
}

std::unique_ptr<models::Processor> load_image_processor(const nlohmann::json& config,
                                                        const std::filesystem::path& folder,
                                                        const ProcessorSettings& settings) {
  return load_processor(config, folder, settings, /*videos=*/std::nullopt);
}

std::unique_ptr<models::Processor> load_video_processor(const nlohmann::json& config,
                                                        const std::filesystem::path& folder,
                                                        const ProcessorSettings& settings) {
  const int64_t tile_size = read_config(config, folder).vision.image_size;
  return load_processor(config, folder, settings, VideoSettings::find(folder, tile_size, settings));
}

data::SampleShape compute_video_sample_shape(const nlohmann::json& config, const std::filesystem::path& folder,
                                             const image::VideoInfo& video, const ProcessorSettings& settings) {
  const Config model_config = read_config(config, folder);
  const auto videos = VideoSettings::find(folder, model_config.vision.image_size, settings);
  if (!videos) {
    throw usage_error(
        "--video-frames: {} frames, but this checkpoint supports no videos, since its processor file has no "
        "video_sampling; use SmolVLM2, another family with video support ({}), or images",
        video.num_frames, format_video_model_types());
  }
  const VideoText text = make_video_text(*videos, video, model_config.image_tokens_per_tile());
  const int64_t side = model_config.vision.image_size;
  return {.tokens = count_tokens(text.text, folder),
          .image_tokens = text.frames * model_config.image_tokens_per_tile(),
          .pixel_rows = text.frames,
          .row = {.height = side, .width = side},
          .num_videos = 1,
          .video_frames = text.frames};
}

data::SampleShape compute_image_sample_shape(const nlohmann::json& config, const std::filesystem::path& folder,
                                             image::ImageSize size, std::optional<int64_t> max_pixels) {
  const Config model_config = read_config(config, folder);
  const TileGrid grid = make_image_processor(model_config, folder, max_pixels).compute_grid(size);
  const int64_t side = model_config.vision.image_size;
  return {.tokens = count_image_text_tokens(grid, model_config.image_tokens_per_tile(), folder),
          .image_tokens = grid.num_tiles() * model_config.image_tokens_per_tile(),
          .num_images = 1,
          .pixel_rows = grid.num_tiles(),
          .row = {.height = side, .width = side}};
}

/// Adds data.image_max_pixels to `overrides`. It limits the total pixels of an image's cells, but
/// transformers can limit only the longer side. Only a limit below two tiles, which permits one
/// cell, can be saved; a larger one is listed as unsaved.
void add_tile_limit(const ImageProcessorSettings& images, std::optional<int64_t> max_pixels,
                    ProcessorOverrides& overrides) {
  if (!max_pixels || !images.do_image_splitting) return;
  const int64_t tile_size = images.tile_size, tile_pixels = tile_size * tile_size;
  const int64_t tiles_per_side = (images.longest_edge + tile_size - 1) / tile_size;
  // Such a limit never applies.
  if (*max_pixels >= tiles_per_side * tiles_per_side * tile_pixels) return;
  if (*max_pixels >= 2 * tile_pixels) {
    overrides.unsaved_settings.push_back(
        fmt::format("{}={}: transformers' processor limits only the longer side of an image (size.longest_edge), so it "
                    "splits some images into more tiles than this run, up to {}",
                    keys::data::kImageMaxPixels, *max_pixels, tiles_per_side * tiles_per_side + 1));
    return;
  }
  overrides.edit_image_settings = [tile_size](auto& file) { file["size"] = {{"longest_edge", tile_size}}; };
}

ProcessorOverrides make_processor_overrides(const nlohmann::json& config, const std::filesystem::path& folder,
                                            const ProcessorSettings& settings, bool /*has_videos*/) {
  const Config model_config = read_config(config, folder);
  ProcessorOverrides overrides;
  add_tile_limit(make_image_processor(model_config, folder, settings.image_max_pixels).settings(),
                 settings.image_max_pixels, overrides);
  return overrides;
}

void write_video_sampling_settings(nlohmann::ordered_json& file, const VideoSettings& videos) {
  const bool has_video_sampling_section = file.contains("video_sampling") && file["video_sampling"].is_object();
  nlohmann::ordered_json& sampling = has_video_sampling_section ? file["video_sampling"] : file;
  sampling["fps"] = videos.fps;
  sampling[has_video_sampling_section ? "max_frames" : "num_frames"] = videos.max_frames;
}

ProcessorOverrides make_video_processor_overrides(const nlohmann::json& config, const std::filesystem::path& folder,
                                                  const ProcessorSettings& settings, bool has_videos) {
  ProcessorOverrides overrides = make_processor_overrides(config, folder, settings, has_videos);
  overrides.video_processor_type = "SmolVLMVideoProcessor";
  const auto videos = VideoSettings::find(folder, read_config(config, folder).vision.image_size, settings);
  if (!videos) return overrides;
  const bool writes_video_sampling = has_videos || !has_default_video_sampling(settings);
  // If images and videos share one file, its image limits would also apply to frames.
  overrides.creates_video_config = writes_video_sampling || static_cast<bool>(overrides.edit_image_settings);
  if (!overrides.creates_video_config) return overrides;
  overrides.edit_video_settings = [=](auto& file) {
    if (!writes_video_sampling) return;
    write_video_sampling_settings(file, *videos);
    file["do_sample_frames"] = true;
  };
  // Older versions of transformers read video_sampling from the image processor's file.
  overrides.edit_image_settings = [=, limit_images = overrides.edit_image_settings](auto& file) {
    if (limit_images) limit_images(file);
    if (writes_video_sampling && file.contains("video_sampling") && file["video_sampling"].is_object()) {
      write_video_sampling_settings(file, *videos);
    }
  };
  return overrides;
}

ContextLength get_context_length(const nlohmann::json& config, const std::filesystem::path& folder) {
  return {.tokens = read_config(config, folder).text.max_positions, .is_hard_limit = false};
}

double num_parameters(const nlohmann::json& config_json, const std::filesystem::path& folder) {
  const Config config = read_config(config_json, folder);
  return config.vision.num_parameters() + config.text.num_parameters();
}

}  // namespace

std::unique_ptr<VisionLanguageModel> build(const nlohmann::json& config, const std::filesystem::path& folder,
                                           const nn::ParameterSettings& settings) {
  return std::make_unique<Model>(Config::from_json(config, (folder / "config.json").string()),
                                 load_image_processor_settings(folder).normalization, settings);
}

Family make_family() {
  return {.model_types = {"idefics3"},
          .build = build,
          .load_processor = load_image_processor,
          .compute_image_sample_shape = compute_image_sample_shape,
          .get_context_length = get_context_length,
          .num_parameters = num_parameters,
          .make_processor_overrides = make_processor_overrides};
}

Family make_smolvlm_family() {
  Family family = make_family();
  family.model_types = {"smolvlm"};
  family.load_processor = load_video_processor;
  family.compute_video_sample_shape = compute_video_sample_shape;
  family.make_processor_overrides = make_video_processor_overrides;
  return family;
}

}  // namespace vlmtrain::models::idefics3
