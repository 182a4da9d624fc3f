#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "models/checkpoints/config_checks.h"
#include "models/network/config.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/nn/mixers/gated_delta_shape.h"

namespace vlmtrain::models {

namespace {

/// Returns transformers' defaults for a `model_type`.
LlamaConfig get_transformers_defaults(const std::string& type, const std::string& source) {
  if (type == "llama") return {};
  if (type == "mistral")
    return {
        .type = TextModelType::kMistral, .intermediate_size = 14336, .num_key_value_heads = 8, .sliding_window = 4096};
  if (type == "qwen2")
    return {.type = TextModelType::kQwen2, .vocab_size = 151936, .intermediate_size = 22016, .qkv_bias = true};
  if (type == "qwen3")
    return {.type = TextModelType::kQwen3, .vocab_size = 151936, .intermediate_size = 22016, .qk_norm = true};
  if (type == "qwen3_5_text") {
    return {.type = TextModelType::kQwen35,
            .vocab_size = 248320,
            .max_positions = 32768,
            .intermediate_size = 12288,
            .num_heads = 16,
            .num_key_value_heads = 4,
            .head_dim = 256,
            .rope = {.partial_rotary_factor = 0.25},
            .delta_net = {.key_heads = 16, .value_heads = 32, .key_dim = 128, .value_dim = 128, .kernel_size = 4},
            .norm_gain = nn::NormGain::kOnePlusWeight,
            .qk_norm = true,
            .attention_output_gate = true};
  }
  if (type == "smollm3") {
    return {.type = TextModelType::kSmolLm3,
            .vocab_size = 128256,
            .max_positions = 32768,
            .hidden_size = 2048,
            .num_layers = 36,
            .num_heads = 16,
            .num_key_value_heads = 4,
            .rope = {.theta = 2e6},
            .tie_word_embeddings = true};
  }
  throw data_error("{}: text model {} is not supported; supported: llama, mistral, qwen2, qwen3, qwen3_5_text, smollm3",
                   source, type);
}

/// Returns the sliding window. For Mistral it is a number or null. For Qwen and SmolLM3 it applies
/// only with `use_sliding_window`; for Qwen only from block `max_window_layers` on.
std::optional<int64_t> read_sliding_window(const nlohmann::json& json, const std::string& type,
                                           const LlamaConfig& config, const std::string& source) {
  if (type == "mistral") {
    if (!json.contains("sliding_window")) return config.sliding_window;
    if (json["sliding_window"].is_null()) return std::nullopt;
    return read_size(json, "sliding_window", 1, kMaxPositions, source);
  }
  // Implausible values are errors even in unused keys.
  read_size(json, "sliding_window", 1, kMaxPositions, source);
  const bool is_qwen = type == "qwen2" || type == "qwen3";
  if ((is_qwen || type == "smollm3") && io::get_or<bool>(json, "use_sliding_window", false, source) &&
      (!is_qwen || io::get_or<int64_t>(json, "max_window_layers", 28, source) < config.num_layers)) {
    throw data_error("{}: use_sliding_window is not supported in a {} text model; set it to false", source, type);
  }
  return std::nullopt;
}

/// Throws UserError for layer_types with sliding attention, since transformers' Qwen and SmolLM3
/// classes apply a window to these blocks.
void reject_sliding_window_layers(const nlohmann::json& json, const std::string& type, const std::string& source) {
  if (type != "qwen2" && type != "qwen3" && type != "smollm3") return;
  for (const auto& layer : json.value("layer_types", nlohmann::json::array())) {
    if (layer == "full_attention") continue;
    throw data_error("{}: layer_types has {}; only full_attention is supported", source, io::make_json_excerpt(layer));
  }
}

/// Returns for each block of SmolLM3 whether it applies RoPE: the 0 and 1 of `no_rope_layers`, which
/// are 1 for blocks with RoPE. Without that key, every `no_rope_layer_interval`-th block has none.
std::vector<bool> read_uses_rope(const nlohmann::json& json, int64_t num_layers, const std::string& source) {
  const int64_t interval = read_size(json, "no_rope_layer_interval", 4, kMaxBlocks, source);
  const auto layers = io::get_or<std::vector<int64_t>>(json, "no_rope_layers", {}, source);
  std::vector<bool> uses_rope;
  if (layers.empty()) {
    for (int64_t i = 0; i < num_layers; ++i) uses_rope.push_back((i + 1) % interval != 0);
    return uses_rope;
  }
  if (std::ssize(layers) < num_layers) {
    throw config_error("{}: no_rope_layers has {} entries, but num_hidden_layers is {}", source, layers.size(),
                       num_layers);
  }
  for (int64_t i = 0; i < num_layers; ++i) uses_rope.push_back(layers[static_cast<size_t>(i)] != 0);
  return uses_rope;
}

/// Returns the mixer of each block of Qwen3.5: `layer_types`, or attention in every
/// `full_attention_interval`-th block.
std::vector<MixerType> read_mixers(const nlohmann::json& json, int64_t num_layers, const std::string& source) {
  const int64_t interval = read_size(json, "full_attention_interval", 4, kMaxBlocks, source);
  std::vector<MixerType> mixers;
  const auto layer_types = io::get_or<std::vector<std::string>>(json, "layer_types", {}, source);
  if (layer_types.empty()) {
    for (int64_t i = 0; i < num_layers; ++i)
      mixers.push_back((i + 1) % interval == 0 ? MixerType::kAttention : MixerType::kDeltaNet);
    return mixers;
  }
  if (std::ssize(layer_types) != num_layers) {
    throw config_error("{}: layer_types has {} entries, but num_hidden_layers is {}", source, layer_types.size(),
                       num_layers);
  }
  for (const std::string& type : layer_types) {
    if (type != "linear_attention" && type != "full_attention") {
      throw data_error("{}: layer_types has {}; only linear_attention and full_attention are supported", source, type);
    }
    mixers.push_back(type == "linear_attention" ? MixerType::kDeltaNet : MixerType::kAttention);
  }
  return mixers;
}

nn::GatedDeltaShape read_delta_net(const nlohmann::json& json, const nn::GatedDeltaShape& defaults,
                                   const std::string& source) {
  const auto read = [&](const char* key, int64_t fallback) {
    return read_size(json, key, fallback, kMaxLayerWidth, source);
  };
  const nn::GatedDeltaShape shape{.key_heads = read("linear_num_key_heads", defaults.key_heads),
                                  .value_heads = read("linear_num_value_heads", defaults.value_heads),
                                  .key_dim = read("linear_key_head_dim", defaults.key_dim),
                                  .value_dim = read("linear_value_head_dim", defaults.value_dim),
                                  .kernel_size = read("linear_conv_kernel_dim", defaults.kernel_size)};
  if (shape.value_heads % shape.key_heads != 0) {
    throw config_error("{}: linear_num_value_heads {} is not a multiple of linear_num_key_heads {}", source,
                       shape.value_heads, shape.key_heads);
  }
  if (shape.num_history_rows() > nn::kChunkRows) {
    throw data_error("{}: linear_conv_kernel_dim {} is not supported; it must be at most {}", source, shape.kernel_size,
                     nn::kChunkRows + 1);
  }
  check_size(shape.num_channels(),
             "2 · linear_num_key_heads · linear_key_head_dim + linear_num_value_heads · "
             "linear_value_head_dim",
             kMaxLayerWidth, source);
  return shape;
}

/// Throws UserError for mixture-of-experts keys; such feed-forward layers are not supported.
void reject_mixture_of_experts(const nlohmann::json& json, const std::string& source) {
  for (const char* key : {"num_experts", "num_local_experts", "n_routed_experts"}) {
    const auto it = json.find(key);
    if (it == json.end() || !it->is_number_integer() || *it == 0) continue;
    throw data_error("{}: {} {}: a mixture of experts is not supported; use a dense checkpoint of the family", source,
                     key, it->dump());
  }
}

}  // namespace

LlamaConfig LlamaConfig::from_json(const nlohmann::json& json, const std::string& source) {
  reject_mixture_of_experts(json, source);
  reject_attention_dropout(json, source);
  const auto type = io::get_or<std::string>(json, "model_type", "llama", source);
  LlamaConfig config = get_transformers_defaults(type, source);
  config.vocab_size = read_size(json, "vocab_size", config.vocab_size, kMaxVocabSize, source);
  config.hidden_size = read_size(json, "hidden_size", config.hidden_size, kMaxLayerWidth, source);
  config.intermediate_size = read_size(json, "intermediate_size", config.intermediate_size, kMaxLayerWidth, source);
  config.num_layers = read_size(json, "num_hidden_layers", config.num_layers, kMaxBlocks, source);
  config.num_heads = read_size(json, "num_attention_heads", config.num_heads, kMaxLayerWidth, source);
  // Null means the number of attention heads. A missing key means transformers' default, which is
  // the same for Llama.
  const bool uses_default_key_value_heads = type != "llama" && !json.contains("num_key_value_heads");
  config.num_key_value_heads =
      io::get_or<int64_t>(json, "num_key_value_heads",
                          uses_default_key_value_heads ? config.num_key_value_heads : config.num_heads, source);
  if (config.num_key_value_heads < 1 || config.num_heads % config.num_key_value_heads != 0) {
    throw config_error("{}: num_attention_heads {} is not a multiple of num_key_value_heads {}", source,
                       config.num_heads, config.num_key_value_heads);
  }
  const int64_t default_head_dim =
      type == "qwen3" || type == "qwen3_5_text" ? config.head_dim : config.hidden_size / config.num_heads;
  config.head_dim = io::get_or<int64_t>(json, "head_dim", default_head_dim, source);
  check_size(config.head_dim, "head_dim", kMaxLayerWidth, source);
  check_size(config.num_heads * config.head_dim, "num_attention_heads · head_dim", kMaxLayerWidth, source);
  config.rms_norm_eps = read_number(json, "rms_norm_eps", config.rms_norm_eps, kNormEpsRange, source);
  config.max_positions = read_size(json, "max_position_embeddings", config.max_positions, kMaxPositions, source);
  config.rope = RopeConfig::from_json(json, source, config.rope, /*supports_partial_rope=*/type == "qwen3_5_text");
  if (const int64_t rotary_dim = config.rope.compute_rotary_dim(config.head_dim); rotary_dim % 2 != 0) {
    throw data_error(
        "{}: {} features of a head rotate (head_dim · partial_rotary_factor); RoPE requires an even number", source,
        rotary_dim);
  }
  if (type == "smollm3") config.uses_rope = read_uses_rope(json, config.num_layers, source);
  config.sliding_window = read_sliding_window(json, type, config, source);
  reject_sliding_window_layers(json, type, source);
  if (type == "qwen3_5_text") {
    config.mixers = read_mixers(json, config.num_layers, source);
    config.delta_net = read_delta_net(json, config.delta_net, source);
    if (!io::get_or<bool>(json, "attn_output_gate", true, source)) {
      throw data_error("{}: attn_output_gate: false is not supported; Qwen3.5 has output gates", source);
    }
    // Of the gated norm; the gates of the attention are always sigmoids.
    const auto gate_type = io::get_or<std::string>(json, "output_gate_type", "silu", source);
    if (gate_type != "silu" && gate_type != "swish") {
      throw data_error("{}: output_gate_type {} is not supported; supported: silu, swish", source, gate_type);
    }
  }
  const bool has_mlp_bias_key = type == "llama" || type == "smollm3";
  if (has_mlp_bias_key || type == "qwen3" || type == "qwen3_5_text") {
    config.qkv_bias = config.attention_output_bias = io::get_or<bool>(json, "attention_bias", false, source);
  }
  if (has_mlp_bias_key) config.mlp_bias = io::get_or<bool>(json, "mlp_bias", false, source);
  config.tie_word_embeddings = io::get_or<bool>(json, "tie_word_embeddings", config.tie_word_embeddings, source);
  const auto activation = io::get_or<std::string>(json, "hidden_act", "silu", source);
  if (activation != "silu") {
    throw data_error("{}: hidden_act {} is not supported in a {} text model; supported: silu", source, activation,
                     type);
  }
  return config;
}

MixerType LlamaConfig::get_mixer(int64_t block) const {
  return mixers.empty() ? MixerType::kAttention : mixers.at(static_cast<size_t>(block));
}

bool LlamaConfig::has_delta_nets() const {
  return std::ranges::find(mixers, MixerType::kDeltaNet) != mixers.end();
}

bool LlamaConfig::has_blocks_without_rope() const {
  return std::ranges::find(uses_rope, false) != uses_rope.end();
}

double LlamaConfig::num_parameters() const {
  // Query and output projections have `num_heads`, key and value projections
  // `num_key_value_heads` heads.
  // The MLP has three matrices: gate, up and down.
  const double gates = attention_output_gate ? static_cast<double>(num_heads) : 0.0;
  const double attention =
      (2.0 * static_cast<double>(num_heads + num_key_value_heads) + gates) * static_cast<double>(head_dim);
  const double delta_net_columns = static_cast<double>(delta_net.num_channels() + 2 * delta_net.num_outputs());
  const auto num_delta_nets = static_cast<double>(std::ranges::count(mixers, MixerType::kDeltaNet));
  const double mixer_columns =
      num_delta_nets * delta_net_columns + (static_cast<double>(num_layers) - num_delta_nets) * attention;
  const double mlp_columns = 3.0 * static_cast<double>(num_layers) * static_cast<double>(intermediate_size);
  return static_cast<double>(hidden_size) * (mixer_columns + mlp_columns) +
         2.0 * static_cast<double>(vocab_size) * static_cast<double>(hidden_size);
}

}  // namespace vlmtrain::models
