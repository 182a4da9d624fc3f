#include "models/nanovlm/family.h"

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cctype>
#include <initializer_list>
#include <set>
#include <string_view>

#include "models/checkpoints/config_checks.h"
#include "models/family.h"
#include "models/nanovlm/processor.h"
#include "models/processing/chat_encoder.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/io/checkpoint.h"
#include "vlmtrain/io/json.h"

namespace vlmtrain::models::nanovlm {

using nlohmann::json;

namespace {

constexpr VisionTransformerModuleNames kVisionModuleNames{.patch_embedding = "patch_embedding.conv",
                                                          .position_embedding = "patch_embedding.position_embedding",
                                                          .blocks = "blocks",
                                                          .norm1 = "ln1",
                                                          .norm2 = "ln2",
                                                          .attention = "attn",
                                                          .post_layernorm = "layer_norm"};
constexpr LlamaModuleNames kTextModuleNames{.embedding = "token_embedding",
                                            .blocks = "blocks",
                                            .attention = "attn",
                                            .attention_output = "out_proj",
                                            .input_norm = "norm1",
                                            .post_attention_norm = "norm2"};

/// Returns all keys of VLMConfig in nanoVLM's releases, which reject other keys, and the keys that
/// transformers adds.
const std::set<std::string_view>& get_supported_config_keys() {
  static const std::set<std::string_view> keys{
      // supported
      "vit_hidden_dim", "vit_inter_dim", "vit_patch_size", "vit_img_size", "vit_n_heads", "vit_dropout", "vit_n_blocks",
      "vit_ln_eps", "vit_cls_flag", "vit_model_type", "lm_hidden_dim", "lm_inter_dim", "lm_rms_eps", "lm_re_base",
      "lm_max_position_embeddings", "lm_vocab_size", "lm_n_heads", "lm_n_kv_heads", "lm_dropout", "lm_n_blocks",
      "lm_attn_scaling", "lm_use_tokens", "lm_tie_weights", "lm_model_type", "lm_tokenizer", "lm_chat_template",
      "mp_pixel_shuffle_factor", "mp_image_token_length", "IMAGE_TOKEN_LENGTH", "max_img_size",
      "resize_to_max_side_len", "vlm_extra_tokens",
      // without effect on the model: training settings and sums of other keys
      "lm_base_vocab_size", "extra_token_amount", "lm_max_length", "TOTAL_SEQUENCE_LENGTH", "lm_eos_token_id",
      "vlm_load_backbone_weights", "vlm_checkpoint_path", "hf_repo_name", "architectures", "torch_dtype", "dtype",
      "transformers_version"};
  return keys;
}

void check_config_keys(const json& config, const std::string& source) {
  for (const auto& [key, value] : config.items()) {
    if (get_supported_config_keys().contains(key)) continue;
    throw data_error("{}: {} is not a key of nanoVLM's config; remove it if the model does not depend on it", source,
                     key);
  }
}

/// Throws UserError for an unsupported tower or text model. nanoVLM has no key for their types, so
/// the type is searched for in the names of their original checkpoints.
void check_model_type(const json& config, const char* key, std::initializer_list<std::string_view> supported,
                      std::string_view supported_models, const std::string& source) {
  const auto name = io::get_or<std::string>(config, key, "", source);
  std::string lowercase_name = name;
  std::ranges::transform(lowercase_name, lowercase_name.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  const auto name_contains = [&](std::string_view type) { return lowercase_name.find(type) != std::string::npos; };
  if (name.empty() || std::ranges::any_of(supported, name_contains)) return;
  throw data_error("{}: {} {} is not supported; supported: {}", source, key, name, supported_models);
}

/// Throws UserError if a key has a value other than null, false and 0.
void check_key_is_disabled(const json& config, const char* key, const std::string& source) {
  const auto it = config.find(key);
  if (it == config.end() || it->is_null() || *it == false || *it == 0) return;
  throw data_error("{}: {} is {}, which is not supported; nanoVLM's checkpoints have {}", source, key, it->dump(),
                   it->is_boolean() ? "false" : "0");
}

VisionTransformerConfig read_vision_config(const json& config, const std::string& source) {
  // Sizes have no defaults, since those of nanoVLM's releases differ.
  const json sizes{{"hidden_size", io::get<int64_t>(config, "vit_hidden_dim", source)},
                   {"intermediate_size", io::get<int64_t>(config, "vit_inter_dim", source)},
                   {"num_hidden_layers", io::get<int64_t>(config, "vit_n_blocks", source)},
                   {"num_attention_heads", io::get<int64_t>(config, "vit_n_heads", source)},
                   {"image_size", io::get<int64_t>(config, "vit_img_size", source)},
                   {"patch_size", io::get<int64_t>(config, "vit_patch_size", source)},
                   {"layer_norm_eps", read_number(config, "vit_ln_eps", 1e-6, kNormEpsRange, source)}};
  VisionTransformerConfig defaults;
  defaults.has_fused_qkv = true;
  defaults.has_batched_position_embedding = true;
  defaults.names = kVisionModuleNames;
  return VisionTransformerConfig::from_json(sizes, defaults, source + " (vit_*)");
}

LlamaConfig read_text_config(const json& config, const std::string& source) {
  const auto hidden = io::get<int64_t>(config, "lm_hidden_dim", source);
  const auto heads = io::get<int64_t>(config, "lm_n_heads", source);
  if (heads < 1 || hidden % heads != 0) {
    throw config_error("{}: lm_hidden_dim {} is not a multiple of lm_n_heads {}", source, hidden, heads);
  }
  const json sizes{{"vocab_size", io::get<int64_t>(config, "lm_vocab_size", source)},
                   {"hidden_size", hidden},
                   {"intermediate_size", io::get<int64_t>(config, "lm_inter_dim", source)},
                   {"num_hidden_layers", io::get<int64_t>(config, "lm_n_blocks", source)},
                   {"num_attention_heads", heads},
                   {"num_key_value_heads", io::get<int64_t>(config, "lm_n_kv_heads", source)},
                   {"rms_norm_eps", read_number(config, "lm_rms_eps", 1e-5, kNormEpsRange, source)},
                   {"rope_theta", read_number(config, "lm_re_base", 100000, kRopeThetaRange, source)},
                   {"tie_word_embeddings", io::get_or<bool>(config, "lm_tie_weights", true, source)}};
  LlamaConfig text = LlamaConfig::from_json(sizes, source + " (lm_*)");
  text.rope.scale = read_number(config, "lm_attn_scaling", 1.0, {.exclusive_min = 0, .max = 1e6}, source);
  text.names = kTextModuleNames;
  return text;
}

void check_num_image_tokens(const Config& config, const json& json_config, const std::string& source) {
  const int64_t side = config.vision.patches_per_side();
  if (config.scale_factor < 1 || side % config.scale_factor != 0) {
    throw config_error("{}: {} patches per side are not a multiple of mp_pixel_shuffle_factor {}", source, side,
                       config.scale_factor);
  }
  const int64_t tokens = config.image_tokens_per_tile();
  for (const char* key : {"mp_image_token_length", "IMAGE_TOKEN_LENGTH"}) {
    const auto value = io::get_or<int64_t>(json_config, key, tokens, source);
    if (value == tokens) continue;
    throw config_error(
        "{}: {} is {}, but vit_img_size, vit_patch_size and mp_pixel_shuffle_factor give {} tokens per tile", source,
        key, value, tokens);
  }
}

/// Throws UserError if vlm_extra_tokens lacks the image token or the token of a possible cell.
void check_extra_tokens(const Config& config, const std::string& source) {
  if (config.puts_images_before_text()) {
    if (!config.max_image_side) return;
    throw config_error("{}: has max_img_size but no vlm_extra_tokens, which mark the tiles", source);
  }
  if (!config.extra_tokens.contains("image_token")) {
    throw config_error("{}: vlm_extra_tokens has no image_token", source);
  }
  if (!config.max_image_side) return;
  const int64_t tile = config.vision.image_size;
  if (*config.max_image_side < tile || *config.max_image_side % tile != 0) {
    throw config_error("{}: max_img_size {} is not a multiple of the tile's side, vit_img_size {}", source,
                       *config.max_image_side, tile);
  }
  const int64_t max_tiles = *config.max_image_side / tile;
  for (int64_t row = 1; row <= max_tiles; ++row) {
    for (int64_t column = 1; column <= max_tiles; ++column) {
      const auto token_name = fmt::format("r{}c{}", row, column);
      if ((max_tiles == 1 && config.has_global_image()) || config.extra_tokens.contains(token_name)) continue;
      throw config_error("{}: max_img_size {} gives up to {} x {} tiles, but vlm_extra_tokens has no {}", source,
                         *config.max_image_side, max_tiles, max_tiles, token_name);
    }
  }
}

}  // namespace

Config Config::from_json(const json& json_config, const std::string& source) {
  check_config_keys(json_config, source);
  check_model_type(json_config, "vit_model_type", {"siglip"}, "SigLIP without a class token", source);
  check_model_type(json_config, "lm_model_type", {"smollm", "llama"}, "SmolLM and other Llama models", source);
  for (const char* key : {"vit_cls_flag", "vit_dropout", "lm_dropout", "lm_use_tokens"}) {
    check_key_is_disabled(json_config, key, source);
  }
  Config config;
  config.vision = read_vision_config(json_config, source);
  config.text = read_text_config(json_config, source);
  config.scale_factor = io::get<int64_t>(json_config, "mp_pixel_shuffle_factor", source);
  config.max_positions =
      read_size(json_config, "lm_max_position_embeddings", config.max_positions, kMaxPositions, source);
  config.tokenizer_name = io::get_or<std::string>(json_config, "lm_tokenizer", "", source);
  config.chat_template = io::get_or<std::string>(json_config, "lm_chat_template", "", source);
  config.resize_to_max_side = io::get_or<bool>(json_config, "resize_to_max_side_len", false, source);
  if (json_config.contains("max_img_size")) {
    config.max_image_side = read_size(json_config, "max_img_size", 0, kMaxImageSide, source);
  }
  if (json_config.contains("vlm_extra_tokens")) {
    const json& tokens = json_config["vlm_extra_tokens"];
    for (const auto& [token_name, token] : tokens.items()) {
      config.extra_tokens[token_name] = io::get<std::string>(tokens, token_name, source + " (vlm_extra_tokens)");
    }
  }
  check_num_image_tokens(config, json_config, source);
  check_extra_tokens(config, source);
  return config;
}

bool matches_config(const json& json_config) {
  return json_config.is_object() && json_config.contains("vit_hidden_dim") && json_config.contains("lm_hidden_dim");
}

std::vector<std::string> list_extra_tokens(const std::filesystem::path& folder) {
  const auto config = io::read_ordered_json(folder / "config.json");
  std::vector<std::string> tokens;
  if (!config.contains("vlm_extra_tokens")) return tokens;
  for (const auto& [token_name, token] : config["vlm_extra_tokens"].items()) tokens.push_back(token.get<std::string>());
  return tokens;
}

namespace {

Config read_config(const nlohmann::json& config, const std::filesystem::path& folder) {
  return Config::from_json(config, (folder / "config.json").string());
}

std::unique_ptr<models::Processor> load_processor(const nlohmann::json& config, const std::filesystem::path& folder,
                                                  const ProcessorSettings& settings) {
  const Config model_config = read_config(config, folder);
  text::Tokenizer tokenizer = load_tokenizer(model_config, folder);
  text::ChatTemplate chat_template =
      load_chat_template(folder, tokenizer, settings,
                         {.fallback = model_config.puts_images_before_text() ? "question_answer" : "chatml",
                          .text_after_leading_image = "",
                          .config_template = model_config.puts_images_before_text() ? "" : model_config.chat_template,
                          .config_template_key = "lm_chat_template"});
  return make_processor(model_config, ImageProcessor(model_config, settings.image_max_pixels), std::move(tokenizer),
                        std::move(chat_template), settings);
}

data::SampleShape compute_image_sample_shape(const nlohmann::json& config, const std::filesystem::path& folder,
                                             image::ImageSize size, std::optional<int64_t> max_pixels) {
  const Config model_config = read_config(config, folder);
  const TileGrid grid = ImageProcessor(model_config, max_pixels).compute_grid(size);
  const int64_t side = model_config.vision.image_size;
  return {.tokens = count_image_text_tokens(model_config, grid),
          .image_tokens = grid.num_tiles() * model_config.image_tokens_per_tile(),
          .num_images = 1,
          .pixel_rows = grid.num_tiles(),
          .row = {.height = side, .width = side}};
}

ProcessorOverrides make_processor_overrides(const nlohmann::json& config, const std::filesystem::path& folder,
                                            const ProcessorSettings& settings, bool /*has_videos*/) {
  const Config model_config = read_config(config, folder);
  ProcessorOverrides overrides;
  if (!settings.image_max_pixels || !model_config.max_image_side) return overrides;
  const int64_t tiles_per_side =
      (*model_config.max_image_side + model_config.vision.image_size - 1) / model_config.vision.image_size;
  if (*settings.image_max_pixels >=
      tiles_per_side * tiles_per_side * model_config.vision.image_size * model_config.vision.image_size)
    return overrides;
  overrides.unsaved_settings.push_back(
      fmt::format("{}={}: nanoVLM's original code limits only the longer side of an image (max_img_size in "
                  "config.json), so it splits some images into more tiles than this run",
                  keys::data::kImageMaxPixels, *settings.image_max_pixels));
  return overrides;
}

ContextLength get_context_length(const nlohmann::json& config, const std::filesystem::path& folder) {
  return {
      .tokens = read_config(config, folder).max_positions, .is_hard_limit = true, .key = "lm_max_position_embeddings"};
}

double num_parameters(const nlohmann::json& config_json, const std::filesystem::path& folder) {
  const Config config = read_config(config_json, folder);
  return config.vision.num_parameters() + config.text.num_parameters();
}

}  // namespace

Family make_family() {
  return {.model_types = {},
          .build = build,
          .load_processor = load_processor,
          .compute_image_sample_shape = compute_image_sample_shape,
          .get_context_length = get_context_length,
          .num_parameters = num_parameters,
          .matches_config = matches_config,
          .config_description = "nanoVLM's own (keys vit_hidden_dim and lm_hidden_dim)",
          .make_processor_overrides = make_processor_overrides};
}

}  // namespace vlmtrain::models::nanovlm
