#include "models/internvl/config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

#include "models/checkpoints/config_checks.h"
#include "models/checkpoints/tensor_names.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/io/checkpoint.h"
#include "vlmtrain/io/json.h"

namespace vlmtrain::models::internvl {

namespace {

using nlohmann::json;

/// Returns the side of a square, given as one number or, as transformers writes it, as two equal
/// ones.
int64_t read_square_side(const json& config, const char* key, int64_t fallback, const std::string& source) {
  const auto it = config.find(key);
  if (it == config.end() || !it->is_array()) return read_size(config, key, fallback, kMaxImageSide, source);
  if (it->size() != 2 || it->front() != it->back()) {
    throw data_error("{}: {} is {}; only squares are supported", source, key, io::make_json_excerpt(*it));
  }
  return read_size({{key, it->front()}}, key, fallback, kMaxImageSide, source);
}

/// Throws UserError for unsupported values, none of which a published checkpoint has.
void reject_unsupported_vision_settings(const json& vision, const std::string& source) {
  const auto check_supported_value = [&](const char* key, const json& supported) {
    const json value = vision.value(key, supported);
    if (value != supported) {
      throw data_error("{}: {} is {}, which is not supported; {} is", source, key, io::make_json_excerpt(value),
                       supported.dump());
    }
  };
  check_supported_value("model_type", "internvl_vision");
  check_supported_value("num_channels", 3);
  check_supported_value("use_mask_token", false);
  check_supported_value("use_absolute_position_embeddings", true);
  for (const char* key : {"hidden_dropout_prob", "attention_dropout", "projection_dropout"})
    check_supported_value(key, 0.0);
}

NormType parse_norm_type(const json& vision, const std::string& source) {
  const auto name = io::get_or<std::string>(vision, "norm_type", "layer_norm", source);
  if (name == "layer_norm") return NormType::kLayerNorm;
  if (name == "rms_norm") return NormType::kRmsNorm;
  throw data_error("{}: norm_type {} is not supported; layer_norm and rms_norm are", source, name);
}

VisionConfig read_vision_config(const json& vision, const std::string& source) {
  reject_unsupported_vision_settings(vision, source);
  VisionConfig config;
  config.hidden_size = read_size(vision, "hidden_size", config.hidden_size, kMaxLayerWidth, source);
  config.intermediate_size = read_size(vision, "intermediate_size", config.intermediate_size, kMaxLayerWidth, source);
  config.num_layers = read_size(vision, "num_hidden_layers", config.num_layers, kMaxBlocks, source);
  config.num_heads = read_size(vision, "num_attention_heads", config.num_heads, kMaxLayerWidth, source);
  config.image_size = read_square_side(vision, "image_size", config.image_size, source);
  config.patch_size = read_square_side(vision, "patch_size", config.patch_size, source);
  config.norm_eps = read_number(vision, "layer_norm_eps", config.norm_eps, kNormEpsRange, source);
  config.norm_type = parse_norm_type(vision, source);
  config.activation =
      parse_activation(io::get_or<std::string>(vision, "hidden_act", "gelu", source), "hidden_act", source);
  config.qkv_bias = io::get_or<bool>(vision, "attention_bias", false, source);
  config.qk_norm = io::get_or<bool>(vision, "use_qk_norm", false, source);
  config.has_final_norm = !io::get_or<bool>(vision, "use_mean_pooling", true, source);
  config.layer_scale_init_value =
      io::get_or<double>(vision, "layer_scale_init_value", config.layer_scale_init_value, source);
  if (config.hidden_size % config.num_heads != 0) {
    throw data_error("{}: hidden_size {} is not a multiple of num_attention_heads {}", source, config.hidden_size,
                     config.num_heads);
  }
  if (config.image_size < config.patch_size) {
    throw data_error("{}: image_size {} is smaller than patch_size {}", source, config.image_size, config.patch_size);
  }
  return config;
}

/// Replaces the RoPE type "dynamic" (NTK-aware scaling) by "default"; returns true if it was set.
/// Up to max_position_embeddings, both types have bitwise equal frequencies.
bool remove_dynamic_rope(json& text) {
  bool is_removed = false;
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const auto rope = text.find(key);
    if (rope == text.end() || !rope->is_object()) continue;
    for (const char* type : {"type", "rope_type"}) {
      if (rope->value(type, json()) != "dynamic") continue;
      (*rope)[type] = "default";
      is_removed = true;
    }
  }
  return is_removed;
}

void reject_unsupported_text_model(const json& text, const std::string& type, const std::string& source) {
  if (type.find("moe") != std::string::npos || type == "gpt_oss") {
    throw data_error(
        "{}: text model {} is a mixture of experts, as in InternVL3_5-20B-A4B, -30B-A3B and -241B-A28B, which is not "
        "supported; use a dense one, such as InternVL3_5-8B-HF or -14B-HF",
        source, type);
  }
  constexpr std::array<std::string_view, 3> kSupportedTextModelTypes{"qwen2", "qwen3", "llama"};
  if (std::ranges::find(kSupportedTextModelTypes, type) == kSupportedTextModelTypes.end()) {
    throw data_error("{}: text model {} is not supported in InternVL; qwen2, qwen3 and llama are", source, type);
  }
  for (const json& layer : text.value("layer_types", json::array())) {
    if (layer != "full_attention") {
      throw data_error("{}: layer_types has {}; only full_attention is supported", source,
                       io::make_json_excerpt(layer));
    }
  }
}

/// Returns whether the output projection is tied to the embedding: the top-level key if it exists.
/// Files of transformers 4 lack it, and their text_config can contradict the weights. The weights
/// decide then, as in transformers 5; without weights, text_config does.
bool read_tie_word_embeddings(const json& config, const LlamaConfig& text, const std::filesystem::path& folder) {
  if (config.contains("tie_word_embeddings") && !config["tie_word_embeddings"].is_null()) {
    return io::get<bool>(config, "tie_word_embeddings", (folder / "config.json").string());
  }
  const auto names = io::read_checkpoint_tensor_names(folder);
  if (names.empty()) return text.tie_word_embeddings;
  if (const auto tensors = find_output_tensor_names(names)) return are_output_tensors_equal(*tensors, folder);
  return std::ranges::none_of(names, is_output_projection);
}

/// Returns 1 / downsample_ratio. Throws UserError if it is not an integer.
int64_t read_scale_factor(const json& config, const std::string& source) {
  const double downsample_ratio = read_number(config, "downsample_ratio", 0.5, {.exclusive_min = 0, .max = 1}, source);
  const auto scale_factor = static_cast<int64_t>(std::min(1 / downsample_ratio, static_cast<double>(kMaxImageSide)));
  if (1.0 / static_cast<double>(scale_factor) != downsample_ratio) {
    throw data_error("{}: downsample_ratio {} is not the inverse of an integer", source, downsample_ratio);
  }
  return scale_factor;
}

void check_vision_feature_settings(const json& config, const std::string& source) {
  const json feature_layer = config.value("vision_feature_layer", json(-1));
  if (feature_layer != -1) {
    throw data_error("{}: vision_feature_layer {} is not supported; -1, the last, is", source,
                     io::make_json_excerpt(feature_layer));
  }
  const auto select_strategy = io::get_or<std::string>(config, "vision_feature_select_strategy", "default", source);
  if (select_strategy != "default") {
    throw data_error("{}: vision_feature_select_strategy {} is not supported; default is", source, select_strategy);
  }
}

json get_required_section(const json& config, const char* key, const std::string& source) {
  const json value = get_section(config, key, source);
  return value.is_null() ? json::object() : value;
}

}  // namespace

Config Config::from_json(const json& json_config, const std::filesystem::path& folder) {
  const std::string source = (folder / "config.json").string();
  Config config;
  config.vision =
      read_vision_config(get_required_section(json_config, "vision_config", source), source + " (vision_config)");

  const std::string text_source = source + " (text_config)";
  json text = get_required_section(json_config, "text_config", source);
  const auto type = io::get_or<std::string>(text, "model_type", "qwen2", text_source);
  text["model_type"] = type;
  reject_unsupported_text_model(text, type, text_source);
  config.is_hard_limit = remove_dynamic_rope(text);
  config.text = LlamaConfig::from_json(text, text_source);
  config.text.tie_word_embeddings = read_tie_word_embeddings(json_config, config.text, folder);

  check_vision_feature_settings(json_config, source);
  config.scale_factor = read_scale_factor(json_config, source);
  if (config.vision.patches_per_side() % config.scale_factor != 0) {
    throw data_error("{}: {} patches per side are not a multiple of {}, the inverse of downsample_ratio", source,
                     config.vision.patches_per_side(), config.scale_factor);
  }
  config.projector_activation = parse_activation(
      io::get_or<std::string>(json_config, "projector_hidden_act", "gelu", source), "projector_hidden_act", source);
  config.image_token_id = io::get_or<int64_t>(json_config, "image_token_id", config.image_token_id, source);
  if (config.image_token_id < 0 || config.image_token_id >= config.text.vocab_size) {
    throw data_error("{}: image_token_id {} is not in the vocabulary of {}; use the checkpoint's own file", source,
                     config.image_token_id, config.text.vocab_size);
  }
  return config;
}

double Config::num_parameters() const {
  const auto hidden = static_cast<double>(vision.hidden_size), width = static_cast<double>(text.hidden_size);
  const double parameters_per_block = hidden * (4.0 * hidden + 2.0 * static_cast<double>(vision.intermediate_size));
  const double values_per_patch = 3.0 * static_cast<double>(vision.patch_size) * static_cast<double>(vision.patch_size);
  const double num_tower_parameters = static_cast<double>(vision.num_layers) * parameters_per_block +
                                      hidden * (values_per_patch + static_cast<double>(vision.num_positions()));
  const double pixel_shuffled_width = hidden * static_cast<double>(scale_factor) * static_cast<double>(scale_factor);
  return num_tower_parameters + width * (pixel_shuffled_width + width) + text.num_parameters();
}

}  // namespace vlmtrain::models::internvl
