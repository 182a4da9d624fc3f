#include "models/gemma4/text_config.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <span>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "models/checkpoints/config_checks.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/text_format.h"
#include "vlmtrain/io/json.h"

namespace vlmtrain::models::gemma4 {

namespace {

using nlohmann::json;

constexpr int64_t kDefaultVocabSize = 262'144;
constexpr NumberRange kSoftCapRange{0, 1e6};  // 1e6 rejects only damaged files

std::string_view get_model_type(GemmaVersion version) {
  return version == GemmaVersion::k4 ? "gemma4_text" : "gemma4_unified_text";
}

/// Throws UserError for settings of other sizes of Gemma 4.
void reject_unsupported_settings(const json& text, const std::string& source) {
  constexpr std::pair<const char*, const char*> kUnsupported[]{{"enable_moe_block", "a mixture of experts (26B-A4B)"},
                                                               {"num_experts", "a mixture of experts (26B-A4B)"},
                                                               {"num_local_experts", "a mixture of experts"},
                                                               {"attention_bias", "biases of the attention"}};
  for (const auto& [key, description] : kUnsupported) {
    const auto it = text.find(key);
    if (it == text.end() || it->is_null() || *it == false || *it == 0) continue;
    throw data_error("{}: {} is {}: {} is not supported; use a dense checkpoint", source, key, it->dump(), description);
  }
}

std::vector<GemmaLayerType> read_layer_types(const json& text, const std::string& source) {
  const int64_t num_layers = read_size(text, "num_hidden_layers", 30, kMaxBlocks, source);
  const auto names = io::get_or<std::vector<std::string>>(text, "layer_types", {}, source);
  std::vector<GemmaLayerType> types;
  if (names.empty()) {
    constexpr int64_t kPattern = 6;  // full attention in every sixth block, and in the last
    for (int64_t i = 1; i <= num_layers; ++i)
      types.push_back(i % kPattern == 0 || i == num_layers ? GemmaLayerType::kFull : GemmaLayerType::kSliding);
    return types;
  }
  if (std::ssize(names) != num_layers) {
    throw config_error("{}: layer_types names {} blocks, but num_hidden_layers is {}", source, names.size(),
                       num_layers);
  }
  for (const auto& name : names) {
    if (name != "full_attention" && name != "sliding_attention") {
      throw data_error("{}: layer_types: {} is not supported; supported: full_attention, sliding_attention", source,
                       name);
    }
    types.push_back(name == "full_attention" ? GemmaLayerType::kFull : GemmaLayerType::kSliding);
  }
  // As transformers, which warns and changes the type.
  types.back() = GemmaLayerType::kFull;
  return types;
}

RopeConfig read_rope_config(const json& text, const char* section, const json& defaults, const std::string& source) {
  const json sections = get_section(text, "rope_parameters", source);
  const std::string section_source = source + " (rope_parameters)";
  json parameters = sections.empty() ? json() : get_section(sections, section, section_source);
  if (parameters.empty()) parameters = defaults;
  RopeConfig rope = RopeConfig::from_json({{"rope_parameters", std::move(parameters)}}, section_source + "." + section,
                                          RopeConfig{}, /*supports_partial_rope=*/true);
  const bool is_supported =
      rope.type == RopeType::kProportional ||
      (rope.partial_rotary_factor == 1 && (rope.type == RopeType::kDefault || rope.type == RopeType::kLinear));
  if (!is_supported) {
    throw data_error("{}: the rope of {} is not supported; supported: default, linear, proportional", source, section);
  }
  return rope;
}

/// Returns the heads of every block: `common`, and what per_layer_config has instead. Its keys are the
/// numbers of blocks, which transformers pads with zeros.
std::vector<nn::HeadShape> read_heads_by_block(const json& by_block, const nn::HeadShape& common, size_t num_blocks,
                                               const std::string& source) {
  std::vector<nn::HeadShape> heads(num_blocks, common);
  for (const auto& [key, value] : by_block.items()) {
    size_t block = num_blocks;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), block);
    if (error != std::errc() || end != key.data() + key.size() || block >= num_blocks) {
      throw data_error("{}: {} is not the number of one of {} blocks", source, make_excerpt(key), num_blocks);
    }
    const json overrides = get_section(by_block, key.c_str(), source);
    const std::string block_source = fmt::format("{}.{}", source, key);
    for (const auto& [name, setting] : overrides.items()) {
      if (name == "head_dim" || name == "num_key_value_heads") continue;
      throw data_error("{}: {} is not supported; supported: head_dim, num_key_value_heads", block_source,
                       make_excerpt(name));
    }
    heads[block].head_dim = read_size(overrides, "head_dim", common.head_dim, kMaxLayerWidth, block_source);
    heads[block].num_key_value_heads =
        read_size(overrides, "num_key_value_heads", common.num_key_value_heads, kMaxLayerWidth, block_source);
  }
  return heads;
}

/// Returns the heads of blocks with full attention. Published files have global_head_dim and
/// num_global_key_value_heads; files that transformers saves have per_layer_config instead, which is
/// empty if all blocks have the same heads.
nn::HeadShape read_full_heads(const json& text, const GemmaConfig& config, const std::string& source) {
  nn::HeadShape heads = config.sliding.heads;
  heads.has_value_projection = !io::get_or<bool>(text, "attention_k_eq_v", false, source);
  const json by_block = get_section(text, "per_layer_config", source);
  if (!text.contains("per_layer_config") || text.at("per_layer_config").is_null()) {
    heads.head_dim = read_size(text, "global_head_dim", 512, kMaxLayerWidth, source);
    if (!heads.has_value_projection) {
      heads.num_key_value_heads =
          read_size(text, "num_global_key_value_heads", heads.num_key_value_heads, kMaxLayerWidth, source);
    }
    return heads;
  }
  const auto block_heads =
      read_heads_by_block(by_block, config.sliding.heads, config.layer_types.size(), source + " (per_layer_config)");
  // The last block always has full attention.
  heads.head_dim = block_heads.back().head_dim;
  heads.num_key_value_heads = block_heads.back().num_key_value_heads;
  for (size_t block = 0; block < block_heads.size(); ++block) {
    const bool is_full = config.layer_types[block] == GemmaLayerType::kFull;
    const nn::HeadShape& expected = is_full ? heads : config.sliding.heads;
    if (block_heads[block].head_dim != expected.head_dim ||
        block_heads[block].num_key_value_heads != expected.num_key_value_heads) {
      throw data_error(
          "{}: per_layer_config: block {} has other heads than the blocks of its type, which is not "
          "supported; use a published checkpoint",
          source, block);
    }
  }
  return heads;
}

/// Returns whether the tokens of an image see each other (use_bidirectional_attention).
bool read_bidirectional_images(const json& text, GemmaVersion version, const std::string& source) {
  const char* const key = "use_bidirectional_attention";
  const bool is_default = version == GemmaVersion::k4Unified && !text.contains(key);
  const auto value = io::get_or<std::string>(text, key, is_default ? "vision" : "", source);
  if (!value.empty() && value != "vision") {
    throw data_error("{}: use_bidirectional_attention {} is not supported; supported: null, vision", source, value);
  }
  return value == "vision";
}

/// Reads the settings of E2B and E4B: per-layer embeddings, and blocks that read the keys and values of others.
void read_small_model_settings(const json& text, GemmaVersion version, GemmaConfig& config, const std::string& source) {
  constexpr int64_t kDefaultPerLayerFeatures = 256;
  const int64_t default_features = version == GemmaVersion::k4 ? kDefaultPerLayerFeatures : 0;
  config.per_layer.features = read_count(text, "hidden_size_per_layer_input", default_features, kMaxLayerWidth, source);
  if (config.per_layer.features > 0) {
    config.per_layer.vocab_size =
        read_size(text, "vocab_size_per_layer_input", kDefaultVocabSize, kMaxVocabSize, source);
    if (config.per_layer.vocab_size < config.vocab_size) {
      throw config_error("{}: vocab_size_per_layer_input {} is below vocab_size {}", source,
                         config.per_layer.vocab_size, config.vocab_size);
    }
  }
  config.num_key_value_readers = read_count(text, "num_kv_shared_layers", 0, config.num_layers() - 1, source);
  config.reader_intermediate_size =
      config.intermediate_size * (io::get_or<bool>(text, "use_double_wide_mlp", false, source) ? 2 : 1);
  const auto own = std::span(config.layer_types).first(config.layer_types.size() - config.num_key_value_readers);
  for (int64_t block = std::ssize(own); block < config.num_layers(); ++block) {
    if (std::ranges::find(own, config.get_layer_type(block)) != own.end()) continue;
    throw config_error("{}: num_kv_shared_layers {} leaves no block with keys and values for block {} ({})", source,
                       config.num_key_value_readers, block,
                       config.get_layer_type(block) == GemmaLayerType::kFull ? "full_attention" : "sliding_attention");
  }
}

}  // namespace

void check_gemma4_activation(const json& section, const std::string& source) {
  const auto activation = io::get_or<std::string>(section, "hidden_activation", "gelu_pytorch_tanh", source);
  if (activation == "gelu_pytorch_tanh") return;
  throw data_error("{}: hidden_activation {} is not supported; supported: gelu_pytorch_tanh", source, activation);
}

GemmaConfig read_text_config(const json& text, GemmaVersion version, const std::string& source) {
  const auto type = io::get_or<std::string>(text, "model_type", std::string(get_model_type(version)), source);
  if (type != get_model_type(version)) {
    throw data_error(
        "{}: model_type {} does not match the model_type of config.json, which needs {}; use the "
        "checkpoint's own config.json",
        source, type, get_model_type(version));
  }
  reject_unsupported_settings(text, source);
  reject_attention_dropout(text, source);
  check_gemma4_activation(text, source);
  const bool is_unified = version == GemmaVersion::k4Unified;
  GemmaConfig config;
  config.vocab_size = read_size(text, "vocab_size", kDefaultVocabSize, kMaxVocabSize, source);
  config.max_positions =
      read_size(text, "max_position_embeddings", is_unified ? 262'144 : 131'072, kMaxPositions, source);
  config.pad_token_id = read_gemma_token_id(text, "pad_token_id", 0, config.vocab_size, source);
  config.hidden_size = read_size(text, "hidden_size", 2304, kMaxLayerWidth, source);
  config.intermediate_size = read_size(text, "intermediate_size", 9216, kMaxLayerWidth, source);
  config.rms_norm_eps = read_number(text, "rms_norm_eps", config.rms_norm_eps, kNormEpsRange, source);
  config.query_pre_attn_scalar = 1;
  config.norm_gain = nn::NormGain::kWeight;
  config.normalizes_values = true;
  config.has_layer_scalar = true;
  if (text.contains("final_logit_softcapping") && !text.at("final_logit_softcapping").is_null()) {
    config.logit_soft_cap = read_number(text, "final_logit_softcapping", 0, kSoftCapRange, source);
  }
  config.layer_types = read_layer_types(text, source);
  config.sliding.heads = {.num_heads = read_size(text, "num_attention_heads", 8, kMaxLayerWidth, source),
                          .num_key_value_heads = read_size(text, "num_key_value_heads", 4, kMaxLayerWidth, source),
                          .head_dim = read_size(text, "head_dim", 256, kMaxLayerWidth, source)};
  config.full.heads = read_full_heads(text, config, source);
  read_small_model_settings(text, version, config, source);
  for (auto* attention : {&config.sliding, &config.full}) {
    check_gemma_heads(attention->heads, source);
    // Scores are not divided, so that queries of gain 1 would make random attention sharp.
    attention->initial_query_gain = 1 / std::sqrt(static_cast<double>(attention->heads.head_dim));
  }
  config.sliding.window = read_size(text, "sliding_window", is_unified ? 1024 : 512, kMaxPositions, source);
  config.sliding.rope =
      read_rope_config(text, "sliding_attention", {{"rope_type", "default"}, {"rope_theta", 1e4}}, source);
  config.full.rope =
      read_rope_config(text, "full_attention",
                       {{"rope_type", "proportional"}, {"partial_rotary_factor", 0.25}, {"rope_theta", 1e6}}, source);
  config.sliding.is_bidirectional_in_images = read_bidirectional_images(text, version, source);
  // With a tower, transformers shows later tokens of an image to sliding attention only.
  config.full.is_bidirectional_in_images = is_unified && config.sliding.is_bidirectional_in_images;
  return config;
}

}  // namespace vlmtrain::models::gemma4
