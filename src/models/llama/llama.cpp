#include "models/llama/llama.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/silu.h>

#include "vlmtrain/base/error.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/nn/attention.h"

namespace vlmtrain::models {

namespace {

double rope_theta_of(const nlohmann::json& config, const std::string& source) {
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    if (!config.contains(key) || config[key].is_null()) continue;
    const auto& rope = config[key];
    const auto type =
        io::get_or<std::string>(rope, "rope_type", io::get_or<std::string>(rope, "type", "default", source), source);
    if (type != "default") throw data_error("{}: {} of type {} is not supported yet; default is", source, key, type);
    if (rope.contains("rope_theta")) return io::get<double>(rope, "rope_theta", source);
  }
  return io::get_or<double>(config, "rope_theta", 10000.0, source);
}

}  // namespace

LlamaConfig LlamaConfig::from_json(const nlohmann::json& json, const std::string& source) {
  LlamaConfig config;
  config.vocab_size = io::get_or<int64_t>(json, "vocab_size", config.vocab_size, source);
  config.hidden_size = io::get_or<int64_t>(json, "hidden_size", config.hidden_size, source);
  config.intermediate_size = io::get_or<int64_t>(json, "intermediate_size", config.intermediate_size, source);
  config.layers = io::get_or<int64_t>(json, "num_hidden_layers", config.layers, source);
  config.heads = io::get_or<int64_t>(json, "num_attention_heads", config.heads, source);
  config.key_value_heads = io::get_or<int64_t>(json, "num_key_value_heads", config.heads, source);
  if (config.heads < 1 || config.key_value_heads < 1 || config.heads % config.key_value_heads != 0) {
    throw data_error("{}: num_attention_heads {} is not a multiple of num_key_value_heads {}", source, config.heads,
                     config.key_value_heads);
  }
  config.head_dim = io::get_or<int64_t>(json, "head_dim", config.hidden_size / config.heads, source);
  config.rms_norm_eps = io::get_or<double>(json, "rms_norm_eps", config.rms_norm_eps, source);
  config.rope_theta = rope_theta_of(json, source);
  config.attention_bias = io::get_or<bool>(json, "attention_bias", false, source);
  config.mlp_bias = io::get_or<bool>(json, "mlp_bias", false, source);
  const auto activation = io::get_or<std::string>(json, "hidden_act", "silu", source);
  if (activation != "silu") {
    throw data_error("{}: hidden_act {} is not supported in a Llama text model; silu is", source, activation);
  }
  return config;
}

LlamaBlock::LlamaBlock(const nn::ParameterScope& scope, const LlamaConfig& config)
    : head_dim_(config.head_dim),
      query_(scope / "self_attn" / "q_proj", config.hidden_size, config.heads * config.head_dim, config.attention_bias),
      key_(scope / "self_attn" / "k_proj", config.hidden_size, config.key_value_heads * config.head_dim,
           config.attention_bias),
      value_(scope / "self_attn" / "v_proj", config.hidden_size, config.key_value_heads * config.head_dim,
             config.attention_bias),
      out_(scope / "self_attn" / "o_proj", config.heads * config.head_dim, config.hidden_size, config.attention_bias,
           residual_branch_gain(config.layers)),
      gate_(scope / "mlp" / "gate_proj", config.hidden_size, config.intermediate_size, config.mlp_bias),
      up_(scope / "mlp" / "up_proj", config.hidden_size, config.intermediate_size, config.mlp_bias),
      down_(scope / "mlp" / "down_proj", config.intermediate_size, config.hidden_size, config.mlp_bias,
            residual_branch_gain(config.layers)),
      input_norm_(scope / "input_layernorm", config.hidden_size, config.rms_norm_eps),
      post_attention_norm_(scope / "post_attention_layernorm", config.hidden_size, config.rms_norm_eps) {}

at::Tensor LlamaBlock::attend(const at::Tensor& x, const LlamaContext& context) const {
  const auto split_heads = [this](const at::Tensor& rows) { return rows.view({rows.size(0), -1, head_dim_}); };
  const at::Tensor query = nn::apply_rotary(split_heads(query_(x)), context.rotary);
  const at::Tensor key = nn::apply_rotary(split_heads(key_(x)), context.rotary);
  return out_(nn::attention(query, key, split_heads(value_(x)), context.samples, /*causal=*/true).flatten(1));
}

at::Tensor LlamaBlock::feed_forward(const at::Tensor& x) const {
  return down_(at::silu(gate_(x)) * up_(x));
}

at::Tensor LlamaBlock::operator()(const at::Tensor& x, const LlamaContext& context) const {
  const at::Tensor attended = x + attend(input_norm_(x), context);
  return attended + feed_forward(post_attention_norm_(attended));
}

LlamaModel::LlamaModel(const nn::ParameterScope& scope, const LlamaConfig& config)
    : config_(config),
      embedding_((scope / "embed_tokens")
                     .parameter("weight", {config.vocab_size, config.hidden_size},
                                nn::InitialValues::for_fan_in(config.hidden_size))),
      blocks_(scope / "layers", config.layers, config, memory::Component::kLanguage),
      norm_(scope / "norm", config.hidden_size, config.rms_norm_eps) {}

at::Tensor LlamaModel::embed(const at::Tensor& token_ids) const {
  return at::embedding(embedding_, token_ids);
}

at::Tensor LlamaModel::operator()(const at::Tensor& embedded, const at::Tensor& position_ids,
                                  const nn::Segments& samples, const at::Tensor& output_positions,
                                  int64_t recomputed_blocks) const {
  const LlamaContext context{samples, nn::RotaryTable::of(position_ids, config_.head_dim, config_.rope_theta)};
  const at::Tensor hidden = blocks_.run(embedded, recomputed_blocks, context);
  return norm_(hidden.index_select(0, output_positions));
}

}  // namespace vlmtrain::models
