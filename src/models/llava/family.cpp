#include "models/llava/family.h"

#include <algorithm>

#include "models/checkpoints/config_checks.h"
#include "models/llava/processor.h"
#include "models/network/config.h"
#include "models/processing/chat_encoder.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/io/checkpoint.h"
#include "vlmtrain/io/json.h"

namespace vlmtrain::models::llava {

namespace {

using nlohmann::json;

/// Returns transformers' default for a missing vision_config: CLIP ViT-L/14 at 336 pixels.
json make_clip_large_336_config() {
  return {{"model_type", "clip_vision_model"},
          {"hidden_size", 1024},
          {"intermediate_size", 4096},
          {"num_hidden_layers", 24},
          {"num_attention_heads", 16},
          {"image_size", 336},
          {"patch_size", 14},
          {"projection_dim", 768}};
}

/// Returns the number of blocks before entry `layer` of transformers' list of hidden states, whose
/// entry 0 is the embeddings.
int64_t count_feature_blocks(int64_t layer, int64_t num_layers, const char* key, const std::string& source) {
  const int64_t blocks = layer < 0 ? num_layers + 1 + layer : layer;
  if (blocks < 0 || blocks > num_layers) {
    throw config_error("{}: {} {} exceeds the {} blocks of the vision tower", source, key, layer, num_layers);
  }
  return blocks;
}

void read_tower_config(Config& config, const json& vision, const std::string& source) {
  const auto type = io::get_or<std::string>(vision, "model_type", "clip_vision_model", source);
  const std::string vision_source = source + " (vision_config)";
  if (type == "clip_vision_model") {
    config.tower_type = VisionTowerType::kClip;
    config.vision = read_clip_config(vision, vision_source);
  } else if (type == "siglip_vision_model") {
    config.tower_type = VisionTowerType::kSiglip;
    config.vision = read_siglip_config(vision, vision_source);
  } else {
    throw data_error("{}: vision tower {} is not supported in LLaVA; supported: clip_vision_model, siglip_vision_model",
                     source, type);
  }
  config.vision_config = vision;
}

/// Returns the layer of `key`: a number or a list of one number; -2, LLaVA's choice, if it is
/// missing.
int64_t read_feature_layer(const json& config, const char* key, const std::string& source) {
  const auto it = config.find(key);
  if (it != config.end() && it->is_array()) {
    if (it->size() == 1 && it->front().is_number_integer()) return it->front().get<int64_t>();
    throw data_error("{}: {} lists {} layers; supported: one layer", source, key, it->size());
  }
  return io::get_or<int64_t>(config, key, -2, source);
}

Config read_hugging_face_config(const json& json_config, const std::string& source) {
  Config config;
  read_tower_config(config, json_config.value("vision_config", make_clip_large_336_config()), source);
  config.text = LlamaConfig::from_json(json_config.value("text_config", json::object()), source + " (text_config)");
  config.text.tie_word_embeddings |= io::get_or<bool>(json_config, "tie_word_embeddings", false, source);
  config.vision.num_feature_blocks =
      count_feature_blocks(read_feature_layer(json_config, "vision_feature_layer", source), config.vision.num_layers,
                           "vision_feature_layer", source);
  const auto feature_select_strategy =
      io::get_or<std::string>(json_config, "vision_feature_select_strategy", "default", source);
  if (feature_select_strategy != "default" && feature_select_strategy != "full") {
    throw data_error("{}: vision_feature_select_strategy {} is not supported; supported: default, full", source,
                     feature_select_strategy);
  }
  config.drops_first_feature = feature_select_strategy == "default";
  config.projector_activation = parse_activation(
      io::get_or<std::string>(json_config, "projector_hidden_act", "gelu", source), "projector_hidden_act", source);
  config.projector_bias = io::get_or<bool>(json_config, "multimodal_projector_bias", true, source);
  const auto legacy_image_token_id = io::get_or<int64_t>(json_config, "image_token_index", 32000, source);
  config.image_token_id = io::get_or<int64_t>(json_config, "image_token_id", legacy_image_token_id, source);
  if (*config.image_token_id < 0 || *config.image_token_id >= config.text.vocab_size) {
    throw config_error("{}: image_token_index {} is not in the vocabulary of {}", source, *config.image_token_id,
                       config.text.vocab_size);
  }
  return config;
}

/// Returns the folder `name`, relative to the folder `checkpoint`; an empty path if it does not
/// exist.
std::filesystem::path resolve_tower_folder(const std::string& name, const std::filesystem::path& checkpoint) {
  const auto path = checkpoint / name;
  return !name.empty() && std::filesystem::is_directory(path) ? path : std::filesystem::path();
}

/// Returns the tower's vision_config: from config.json, else from the tower's folder, else built in
/// for the two CLIP towers of LLaVA's checkpoints.
json find_tower_config(const json& config, const Config& parsed, const std::string& source) {
  if (config.contains("vision_config")) return config["vision_config"];
  if (!parsed.tower_folder.empty()) {
    const auto tower_config = io::read_json(parsed.tower_folder / "config.json");
    return tower_config.contains("vision_config") ? tower_config["vision_config"] : tower_config;
  }
  if (parsed.tower_name == "openai/clip-vit-large-patch14-336") return make_clip_large_336_config();
  if (parsed.tower_name == "openai/clip-vit-large-patch14") {
    json clip_large_224_config = make_clip_large_336_config();
    clip_large_224_config["image_size"] = 224;
    return clip_large_224_config;
  }
  throw data_error(
      "{}: mm_vision_tower {} is neither a folder nor openai/clip-vit-large-patch14-336 or "
      "openai/clip-vit-large-patch14, whose sizes are built in; download that tower's checkpoint and set "
      "mm_vision_tower to its folder",
      source, parsed.tower_name);
}

void check_config_value(const json& config, const char* key, const std::string& supported, const std::string& source) {
  const auto value = io::get_or<std::string>(config, key, supported, source);
  if (value != supported) throw data_error("{}: {} {} is not supported; supported: {}", source, key, value, supported);
}

Config read_original_config(const json& json_config, const std::filesystem::path& folder, const std::string& source) {
  Config config;
  config.checkpoint_format = CheckpointFormat::kOriginal;
  config.tower_name = io::get_or<std::string>(json_config, "mm_vision_tower", "", source);
  config.tower_folder = resolve_tower_folder(config.tower_name, folder);
  read_tower_config(config, find_tower_config(json_config, config, source), source);

  json text = json_config;
  text["model_type"] = json_config["model_type"] == "llava_mistral" ? "mistral" : "llama";
  config.text = LlamaConfig::from_json(text, source);
  config.vision.num_feature_blocks =
      count_feature_blocks(read_feature_layer(json_config, "mm_vision_select_layer", source), config.vision.num_layers,
                           "mm_vision_select_layer", source);
  const auto feature_selection = io::get_or<std::string>(json_config, "mm_vision_select_feature", "patch", source);
  if (feature_selection != "patch" && feature_selection != "cls_patch") {
    throw data_error("{}: mm_vision_select_feature {} is not supported; supported: patch, cls_patch", source,
                     feature_selection);
  }
  config.drops_first_feature = feature_selection == "patch" && config.tower_type == VisionTowerType::kClip;
  check_config_value(json_config, "mm_projector_type", "mlp2x_gelu", source);
  if (io::get_or<bool>(json_config, "mm_use_im_start_end", false, source)) {
    throw data_error("{}: mm_use_im_start_end is not supported; use a checkpoint without it", source);
  }
  const auto aspect_ratio_mode = io::get_or<std::string>(json_config, "image_aspect_ratio", "square", source);
  if (aspect_ratio_mode != "pad" && aspect_ratio_mode != "square") {
    throw data_error("{}: image_aspect_ratio {} is not supported; supported: pad, square", source, aspect_ratio_mode);
  }
  config.pad_to_square = aspect_ratio_mode == "pad";
  const auto width = io::get_or<int64_t>(json_config, "mm_hidden_size", config.vision.hidden_size, source);
  if (width != config.vision.hidden_size) {
    throw config_error("{}: mm_hidden_size is {}, but the vision tower {} produces {} features", source, width,
                       config.tower_name, config.vision.hidden_size);
  }
  return config;
}

}  // namespace

Config Config::from_json(const json& json_config, const std::filesystem::path& folder) {
  const std::string source = (folder / "config.json").string();
  // LLaVA's original code also wrote model_type "llava" for its first models.
  const bool is_original_format = json_config.contains("mm_vision_tower") || json_config["model_type"] != "llava";
  Config config = is_original_format ? read_original_config(json_config, folder, source)
                                     : read_hugging_face_config(json_config, source);
  if (config.drops_first_feature && config.vision.num_positions() < 2) {
    throw config_error("{}: the vision tower has only one feature per image, the class token, which is dropped",
                       source);
  }
  return config;
}

namespace {

/// Throws UserError if processor_config.json gives another number of tokens per image than
/// config.json; transformers would use it.
void check_processor_config(const Config& config, const std::filesystem::path& folder) {
  const auto path = folder / "processor_config.json";
  if (!std::filesystem::exists(path)) return;
  const auto processor = io::read_json(path);
  const auto patch_size = io::get_or<int64_t>(processor, "patch_size", config.vision.patch_size, path.string());
  const auto feature_select_strategy = io::get_or<std::string>(
      processor, "vision_feature_select_strategy", config.drops_first_feature ? "default" : "full", path.string());
  // Files without this key are older than it; the number is then that of the tower's class tokens.
  const auto num_additional_tokens = io::get_or<int32_t>(processor, "num_additional_image_tokens",
                                                         config.vision.has_class_token ? 1 : 0, path.string());
  const int64_t side = config.vision.image_size / std::max<int64_t>(patch_size, 1);
  const int64_t tokens = side * side + int64_t{num_additional_tokens} - (feature_select_strategy == "default" ? 1 : 0);
  if (tokens != config.tokens_per_image()) {
    throw config_error(
        "{}: patch_size {}, num_additional_image_tokens {} and vision_feature_select_strategy {} give {} tokens per "
        "image, but the vision tower produces {}",
        path.string(), patch_size, num_additional_tokens, feature_select_strategy, tokens, config.tokens_per_image());
  }
}

void check_max_pixels(const Config& config, std::optional<int64_t> max_pixels) {
  const int64_t pixels = config.vision.image_size * config.vision.image_size;
  if (max_pixels && *max_pixels < pixels) {
    throw usage_error("{} is {}, but this model resizes every image to {} pixels; raise it to that or more",
                      keys::data::kImageMaxPixels, *max_pixels, pixels);
  }
}

std::unique_ptr<models::Processor> load_llava_processor(const nlohmann::json& config_json,
                                                        const std::filesystem::path& folder,
                                                        const ProcessorSettings& settings) {
  return load_processor(config_json, folder, settings, /*make_mask_input=*/nullptr);
}

}  // namespace

/// LLaVA-1.5 was trained with Vicuna's template, LLaVA-Med with Mistral's, LLaVA-Interleave with
/// Qwen's.
std::string_view choose_fallback_template(const LlamaConfig& text) {
  switch (text.type) {
    case TextModelType::kLlama:
      return "llava_v1";
    case TextModelType::kMistral:
      return "mistral_instruct";
    case TextModelType::kQwen2:
    case TextModelType::kQwen3:
      return "llava_qwen";
    case TextModelType::kQwen35:
    case TextModelType::kSmolLm3:
      return "chatml";
  }
  throw InternalError("unknown text model");
}

std::unique_ptr<models::Processor> load_processor(
    const nlohmann::json& config_json, const std::filesystem::path& folder, const ProcessorSettings& settings,
    const std::function<MaskInputSettings(const text::Tokenizer&)>& make_mask_input) {
  const Config config = Config::from_json(config_json, folder);
  check_processor_config(config, folder);
  check_max_pixels(config, settings.image_max_pixels);
  text::Tokenizer tokenizer = load_tokenizer(folder);
  text::ChatTemplate chat_template =
      load_chat_template(folder, tokenizer, settings, {.fallback = choose_fallback_template(config.text)});
  std::optional<MaskInputSettings> mask_input;
  if (make_mask_input) mask_input = make_mask_input(tokenizer);
  return make_processor(config, load_image_processor_settings(config, folder), std::move(tokenizer),
                        std::move(chat_template), settings, std::move(mask_input));
}

data::SampleShape compute_image_sample_shape(const nlohmann::json& config_json, const std::filesystem::path& folder,
                                             image::ImageSize /*size*/, std::optional<int64_t> max_pixels) {
  const Config config = Config::from_json(config_json, folder);
  check_processor_config(config, folder);
  check_max_pixels(config, max_pixels);
  load_image_processor_settings(config, folder);
  return {.tokens = config.tokens_per_image(),
          .image_tokens = config.tokens_per_image(),
          .num_images = 1,
          .pixel_rows = 1,
          .row = {.height = config.vision.image_size, .width = config.vision.image_size}};
}

ContextLength get_context_length(const nlohmann::json& config_json, const std::filesystem::path& folder) {
  return {.tokens = Config::from_json(config_json, folder).text.max_positions, .is_hard_limit = false};
}

double num_parameters(const nlohmann::json& config_json, const std::filesystem::path& folder) {
  const Config config = Config::from_json(config_json, folder);
  return config.vision.num_parameters() + config.text.num_parameters();
}

Family make_family() {
  return {{"llava", "llava_llama", "llava_mistral"},
          build,
          load_llava_processor,
          compute_image_sample_shape,
          get_context_length,
          num_parameters};
}

}  // namespace vlmtrain::models::llava
