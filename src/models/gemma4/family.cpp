#include "models/gemma4/family.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "models/checkpoints/config_checks.h"
#include "models/family.h"
#include "models/gemma4/text_config.h"
#include "models/gemma4/video_processor.h"
#include "models/processing/chat_encoder.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/text/tokenizer.h"

namespace vlmtrain::models::gemma4 {

namespace {

using nlohmann::json;

constexpr std::string_view kUnifiedType = "gemma4_unified";

TowerConfig read_tower_config(const json& vision, const std::string& source) {
  reject_attention_dropout(vision, source);
  check_gemma4_activation(vision, source);
  if (io::get_or<bool>(vision, "attention_bias", false, source)) {
    throw data_error("{}: attention_bias: true is not supported; use a checkpoint without it", source);
  }
  const json rope = get_section(vision, "rope_parameters", source);
  const auto rope_type = rope.empty() ? "axial" : io::get_or<std::string>(rope, "rope_type", "axial", source);
  // Published files have the name `default`.
  if (rope_type != "axial" && rope_type != "default") {
    throw data_error("{}: rope_parameters of type {} are not supported; supported: axial, default", source, rope_type);
  }
  TowerConfig config;
  config.hidden_size = read_size(vision, "hidden_size", config.hidden_size, kMaxLayerWidth, source);
  config.intermediate_size = read_size(vision, "intermediate_size", config.intermediate_size, kMaxLayerWidth, source);
  config.num_layers = read_size(vision, "num_hidden_layers", config.num_layers, kMaxBlocks, source);
  const int64_t num_heads = read_size(vision, "num_attention_heads", 12, kMaxLayerWidth, source);
  config.heads = {.num_heads = num_heads,
                  .num_key_value_heads = read_size(vision, "num_key_value_heads", num_heads, kMaxLayerWidth, source),
                  .head_dim = read_size(vision, "head_dim", 64, kMaxLayerWidth, source)};
  check_gemma_heads(config.heads, source);
  if (config.heads.head_dim % 4 != 0) {
    throw data_error("{}: head_dim {} is not a multiple of 4, which RoPE over two axes needs", source,
                     config.heads.head_dim);
  }
  config.rms_norm_eps = read_number(vision, "rms_norm_eps", config.rms_norm_eps, kNormEpsRange, source);
  config.rope_theta =
      rope.empty() ? config.rope_theta : read_number(rope, "rope_theta", config.rope_theta, kRopeThetaRange, source);
  config.num_positions = read_size(vision, "position_embedding_size", config.num_positions, kMaxPositions, source);
  config.has_clipped_linears = io::get_or<bool>(vision, "use_clipped_linears", false, source);
  config.standardizes = io::get_or<bool>(vision, "standardize", false, source);
  return config;
}

PatchEmbedderConfig read_patch_embedder_config(const json& vision, const GemmaConfig& text, const std::string& source) {
  PatchEmbedderConfig config;
  config.embed_dim = read_size(vision, "mm_embed_dim", config.embed_dim, kMaxLayerWidth, source);
  config.num_positions = read_size(vision, "mm_posemb_size", config.num_positions, kMaxPositions, source);
  config.rms_norm_eps = read_number(vision, "rms_norm_eps", config.rms_norm_eps, kNormEpsRange, source);
  const int64_t output_features = read_size(vision, "output_proj_dims", text.hidden_size, kMaxLayerWidth, source);
  if (output_features != config.embed_dim) {
    throw config_error("{}: output_proj_dims {} differs from mm_embed_dim {}", source, output_features,
                       config.embed_dim);
  }
  return config;
}

PatchShape read_patch_shape(const json& vision, bool merges_patches, const std::string& source) {
  return {.patch_size = read_size(vision, "patch_size", 16, kMaxImageSide, source),
          .pooling_size = read_size(vision, "pooling_kernel_size", 3, kMaxImageSide, source),
          .merges_patches = merges_patches};
}

}  // namespace

double TowerConfig::num_parameters() const {
  const auto hidden = static_cast<double>(hidden_size);
  const auto attention_width = static_cast<double>(2 * (heads.num_heads + heads.num_key_value_heads) * heads.head_dim);
  return static_cast<double>(num_layers) * hidden * (attention_width + 3.0 * static_cast<double>(intermediate_size)) +
         2.0 * static_cast<double>(num_positions) * hidden;
}

Config Config::from_json(const json& config_json, const std::string& source) {
  const bool is_unified = io::get_or<std::string>(config_json, "model_type", "gemma4", source) == kUnifiedType;
  Config config;
  config.text = read_text_config(get_section(config_json, "text_config", source),
                                 is_unified ? GemmaVersion::k4Unified : GemmaVersion::k4, source + " (text_config)");
  const std::string vision_source = source + " (vision_config)";
  const json vision = get_section(config_json, "vision_config", source);
  if (vision.empty()) {
    throw data_error("{} is missing or empty, which is not supported in Gemma 4; use a checkpoint with it",
                     vision_source);
  }
  if (is_unified) {
    config.vision = read_patch_embedder_config(vision, config.text, vision_source);
  } else {
    config.vision = read_tower_config(vision, vision_source);
  }
  config.processor.patches = read_patch_shape(vision, is_unified, vision_source);
  get_section(config_json, "audio_config", source);  // kept unread, but no other type
  config.tie_word_embeddings = io::get_or<bool>(config_json, "tie_word_embeddings", true, source);
  const int64_t vocab_size = config.text.vocab_size;
  const auto read_id = [&](const char* key, int64_t fallback) {
    return read_gemma_token_id(config_json, key, fallback, vocab_size, source);
  };
  const MediaTokenIds defaults;
  config.processor.vocab_size = vocab_size;
  config.processor.tokens = {.image = read_id("image_token_id", defaults.image),
                             .video = read_id("video_token_id", defaults.video),
                             .image_start = read_id("boi_token_id", defaults.image_start),
                             .image_end = read_id("eoi_token_id", defaults.image_end),
                             .audio = io::get_or<int64_t>(config_json, "audio_token_id", defaults.audio, source)};
  return config;
}

double Config::num_parameters() const {
  if (const auto* const tower = std::get_if<TowerConfig>(&vision))
    return tower->num_parameters() + text.num_parameters();
  const auto& embedder = std::get<PatchEmbedderConfig>(vision);
  return text.num_parameters() +
         static_cast<double>(embedder.embed_dim) * static_cast<double>(3 * processor.patches.pixels_per_token() +
                                                                       2 * embedder.num_positions + text.hidden_size);
}

namespace {

Config read_config(const nlohmann::json& config, const std::filesystem::path& folder) {
  return Config::from_json(config, (folder / "config.json").string());
}

/// Throws UserError if an image of `max_tokens` tokens exceeds the sliding window of gemma4_unified.
/// There, and only there, transformers shows all earlier tokens of an image, too.
void check_window(const Config& config, int64_t max_tokens, const std::filesystem::path& folder) {
  const auto window = config.text.sliding.window;
  if (std::holds_alternative<TowerConfig>(config.vision) || !window || max_tokens <= *window) return;
  throw data_error(
      "{}: images of {} tokens (max_soft_tokens) exceed sliding_window {}, which is not supported; lower "
      "max_soft_tokens",
      folder.string(), max_tokens, *window);
}

/// Throws UserError for the template of an earlier Gemma. The tokenizer would split its marks of turns
/// into plain text.
void check_turn_marks(const text::ChatTemplate& chat_template, const text::Tokenizer& tokenizer) {
  constexpr std::string_view kEarlierMark = "<start_of_turn>";
  const text::TemplateSource& source = chat_template.source();
  if (source.jinja_source.find(kEarlierMark) == std::string::npos || tokenizer.token_to_id(kEarlierMark)) return;
  throw data_error(
      "{}: the template writes {}, which is not a token of this checkpoint; it is older than the weights: use the "
      "checkpoint's own template or {}=gemma4",
      source.name, kEarlierMark, keys::data::kChatTemplate);
}

std::unique_ptr<models::Processor> load_processor(const nlohmann::json& config_json,
                                                  const std::filesystem::path& folder,
                                                  const ProcessorSettings& settings) {
  const Config config = read_config(config_json, folder);
  const PatchShape& patches = config.processor.patches;
  const auto images = read_image_settings(folder, patches, settings.image_max_pixels);
  const auto videos = VideoSettings::read(folder, patches, settings);
  check_window(config, std::max(images.max_tokens, videos.pixels.max_tokens), folder);
  text::Tokenizer tokenizer = load_tokenizer(folder);
  const MediaTokenTexts texts = find_media_token_texts(tokenizer, config.processor.tokens);
  text::ChatTemplate chat_template = load_chat_template(folder, tokenizer, settings,
                                                        {.fallback = "gemma4",
                                                         .image_markup = {.block = texts.image, .token = texts.image},
                                                         .video_markup = {.block = texts.video, .token = texts.video}});
  check_turn_marks(chat_template, tokenizer);
  return make_processor(config.processor, images, videos, std::move(tokenizer), std::move(chat_template), settings);
}

data::SampleShape compute_image_sample_shape(const nlohmann::json& config_json, const std::filesystem::path& folder,
                                             image::ImageSize size, std::optional<int64_t> max_pixels) {
  const PatchShape patches = read_config(config_json, folder).processor.patches;
  return gemma4::compute_image_sample_shape(read_image_settings(folder, patches, max_pixels), patches, size);
}

data::SampleShape compute_video_sample_shape(const nlohmann::json& config_json, const std::filesystem::path& folder,
                                             const image::VideoInfo& video, const ProcessorSettings& settings) {
  const ProcessorConfig config = read_config(config_json, folder).processor;
  return gemma4::compute_video_sample_shape(VideoSettings::read(folder, config.patches, settings), config, video,
                                            folder);
}

ContextLength get_context_length(const nlohmann::json& config_json, const std::filesystem::path& folder) {
  return {.tokens = read_config(config_json, folder).text.max_positions, .is_hard_limit = false};
}

double num_parameters(const nlohmann::json& config_json, const std::filesystem::path& folder) {
  return read_config(config_json, folder).num_parameters();
}

ProcessorOverrides make_overrides(const nlohmann::json& config_json, const std::filesystem::path& folder,
                                  const ProcessorSettings& settings, bool has_videos) {
  return make_processor_overrides(read_config(config_json, folder).processor.patches, folder, settings, has_videos);
}

}  // namespace

Family make_family() {
  return {.model_types = {"gemma4", kUnifiedType},
          .build = build,
          .load_processor = load_processor,
          .compute_image_sample_shape = compute_image_sample_shape,
          .get_context_length = get_context_length,
          .num_parameters = num_parameters,
          .compute_video_sample_shape = compute_video_sample_shape,
          .make_processor_overrides = make_overrides};
}

}  // namespace vlmtrain::models::gemma4
