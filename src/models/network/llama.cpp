#include "models/network/llama.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/index_copy.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "models/checkpoints/config_checks.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/nn/attention/attention.h"
#include "vlmtrain/nn/layers/activation.h"

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
  throw data_error("{}: text model {} is not supported; supported: llama, mistral, qwen2, qwen3, smollm3", source,
                   type);
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
  const int64_t default_head_dim = type == "qwen3" ? 128 : config.hidden_size / config.num_heads;
  config.head_dim = io::get_or<int64_t>(json, "head_dim", default_head_dim, source);
  check_size(config.head_dim, "head_dim", kMaxLayerWidth, source);
  check_size(config.num_heads * config.head_dim, "num_attention_heads · head_dim", kMaxLayerWidth, source);
  if (config.head_dim % 2 != 0) {
    throw data_error("{}: head_dim {} is odd; RoPE requires an even number", source, config.head_dim);
  }
  config.rms_norm_eps = read_number(json, "rms_norm_eps", config.rms_norm_eps, kNormEpsRange, source);
  config.max_positions = read_size(json, "max_position_embeddings", config.max_positions, kMaxPositions, source);
  config.rope = RopeConfig::from_json(json, source, config.rope.theta);
  if (type == "smollm3") config.uses_rope = read_uses_rope(json, config.num_layers, source);
  config.sliding_window = read_sliding_window(json, type, config, source);
  reject_sliding_window_layers(json, type, source);
  const bool has_mlp_bias_key = type == "llama" || type == "smollm3";
  if (has_mlp_bias_key || type == "qwen3") {
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

bool LlamaConfig::has_blocks_without_rope() const {
  return std::ranges::find(uses_rope, false) != uses_rope.end();
}

double LlamaConfig::num_parameters() const {
  // Query and output projections have `num_heads`, key and value projections
  // `num_key_value_heads` heads.
  // The MLP has three matrices: gate, up and down.
  const double attention = 2.0 * static_cast<double>(num_heads + num_key_value_heads) * static_cast<double>(head_dim);
  const double parameters_per_block =
      static_cast<double>(hidden_size) * (attention + 3.0 * static_cast<double>(intermediate_size));
  return static_cast<double>(num_layers) * parameters_per_block +
         2.0 * static_cast<double>(vocab_size) * static_cast<double>(hidden_size);
}

LlamaBlock::LlamaBlock(const nn::ParameterScope& scope, const LlamaConfig& config)
    : head_shape_{.num_heads = config.num_heads,
                  .num_key_value_heads = config.num_key_value_heads,
                  .head_dim = config.head_dim},
      qkv_(scope / config.names.attention, {"q_proj", "k_proj", "v_proj"}, config.hidden_size,
           {head_shape_.num_heads * head_shape_.head_dim, head_shape_.num_key_value_heads * head_shape_.head_dim,
            head_shape_.num_key_value_heads * head_shape_.head_dim},
           config.qkv_bias),
      out_proj_(scope / config.names.attention / config.names.attention_output, config.num_heads * config.head_dim,
                config.hidden_size, config.attention_output_bias, compute_residual_gain(config.num_layers)),
      gate_up_proj_(scope / "mlp", {"gate_proj", "up_proj"}, config.hidden_size,
                    {config.intermediate_size, config.intermediate_size}, config.mlp_bias),
      down_proj_(scope / "mlp" / "down_proj", config.intermediate_size, config.hidden_size, config.mlp_bias,
                 compute_residual_gain(config.num_layers)),
      input_layernorm_(scope / config.names.input_norm, config.hidden_size, config.rms_norm_eps),
      post_attention_layernorm_(scope / config.names.post_attention_norm, config.hidden_size, config.rms_norm_eps) {
  if (config.qk_norm) {
    qk_norm_.emplace(scope / config.names.attention, config.head_dim, config.rms_norm_eps);
  }
}

at::Tensor LlamaBlock::attend(const at::Tensor& qkv, const LlamaForwardContext& context) const {
  const auto [query, key, value] = qk_norm_ ? qk_norm_->split_and_rotate_heads(qkv, head_shape_, context.rotary_table)
                                            : nn::split_and_rotate_heads(qkv, head_shape_, context.rotary_table);
  const at::Tensor attention_output = context.cache != nullptr
                                          ? context.cache->attention(context.block, query, key, value)
                                          : nn::attention(query, key, value, context.samples,
                                                          /*is_causal=*/true, context.sliding_window);
  return attention_output.flatten(1);
}

at::Tensor LlamaBlock::operator()(const at::Tensor& x, const LlamaForwardContext& context) const {
  nn::ResidualBranch branch = qkv_.forward_branch(input_layernorm_.make_linear_input(x));
  const at::Tensor hidden_states = out_proj_(attend(branch.take_value(), context), /*residual=*/branch.stream);
  const nn::ResidualBranch mlp_branch =
      gate_up_proj_.forward_branch(post_attention_layernorm_.make_linear_input(hidden_states));
  return down_proj_(nn::swiglu(mlp_branch.value), /*residual=*/mlp_branch.stream);
}

LlamaModel::LlamaModel(const nn::ParameterScope& scope, const LlamaConfig& config)
    : config_(config),
      embedding_((scope / config.names.embedding)
                     .add_embedding("weight", {config.vocab_size, config.hidden_size},
                                    nn::InitialValues::kaiming(config.hidden_size))),
      rotary_frequencies_(config.rope.compute_frequencies(config.head_dim).to(embedding_.device())),
      rotary_axes_(config.rope.make_pair_axes().to(embedding_.device())),
      blocks_(scope / config.names.blocks, config.num_layers, config, memory::Component::kLanguage),
      norm_(scope / "norm", config.hidden_size, config.rms_norm_eps) {}

at::Tensor LlamaModel::embed(const data::MicroBatch& batch, const at::Tensor& image_features) const {
  at::Tensor embeddings = at::embedding(embedding_, batch.token_ids);
  if (!image_features.defined()) return embeddings;
  VLMTRAIN_CHECK(image_features.size(0) == batch.image_token_positions.numel(), "{} image features for {} image tokens",
                 image_features.size(0), batch.image_token_positions.numel());
  return embeddings.index_copy(0, batch.image_token_positions, image_features);
}

nn::RotaryTable LlamaModel::make_rotary_table(const at::Tensor& position_ids) const {
  if (position_ids.dim() == 1)
    return nn::RotaryTable::from_positions(position_ids, rotary_frequencies_, config_.rope.scale);
  VLMTRAIN_CHECK(rotary_axes_.numel() > 0, "positions on several axes in a text model with one axis");
  return nn::RotaryTable::from_axes(position_ids, rotary_axes_, rotary_frequencies_, config_.rope.scale);
}

ModelOutput LlamaModel::operator()(const data::MicroBatch& batch, const ImageFeatures& image_features,
                                   const OutputRequest& request, const TowerRecomputeCounts& recomputed_blocks,
                                   nn::KeyValueCache* cache) const {
  const at::Tensor embeddings = embed(batch, image_features.features);
  const LlamaForwardContext context{batch.segments, make_rotary_table(batch.position_ids), config_.sliding_window};
  // Position 0 rotates by nothing, so blocks without RoPE have a table of zeros as positions.
  const auto unrotated_table = config_.has_blocks_without_rope()
                                   ? std::optional(nn::RotaryTable::from_positions(at::zeros_like(batch.position_ids),
                                                                                   rotary_frequencies_, /*scale=*/1))
                                   : std::nullopt;
  if (cache != nullptr) cache->begin_forward(batch.segments, config_.sliding_window);
  const auto make_context = [&](int64_t block) {
    LlamaForwardContext block_context = context;
    block_context.cache = cache;
    block_context.block = block;
    if (unrotated_table && !config_.uses_rope[static_cast<size_t>(block)])
      block_context.rotary_table = *unrotated_table;
    return block_context;
  };
  HiddenStateOptions options{.output_block_indices = request.text_block_indices};
  for (const auto& deepstack : image_features.deepstack_features) {
    // Feature level i is added after block i.
    options.deepstack_additions.push_back(
        {std::ssize(options.deepstack_additions), batch.image_token_positions, deepstack});
  }
  BlockListOutputs outputs = blocks_.run_with_contexts(embeddings, recomputed_blocks, make_context, options);
  return {.hidden_states = norm_(outputs.last_hidden_state.index_select(0, request.positions)),
          .text_block_outputs = std::move(outputs.intermediate_hidden_states)};
}

CausalLlama::CausalLlama(const nn::ParameterScope& scope, const LlamaConfig& config, const nn::ParameterScope& output)
    : text_(scope, config),
      output_weight_(config.tie_word_embeddings
                         ? text_.embedding_weight()
                         : output.add_parameter("weight", {config.vocab_size, config.hidden_size},
                                                nn::InitialValues::kaiming(config.hidden_size))) {}

}  // namespace vlmtrain::models
