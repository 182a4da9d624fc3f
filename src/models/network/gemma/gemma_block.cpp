#include "models/network/gemma/gemma_block.h"

#include <ATen/TensorOperators.h>

#include <utility>

#include "vlmtrain/nn/layers/activation.h"

namespace vlmtrain::models {

namespace {

std::vector<const char*> list_qkv_names(const nn::HeadShape& heads, bool has_keys) {
  if (!has_keys) return {"q_proj"};
  if (!heads.has_value_projection) return {"q_proj", "k_proj"};
  return {"q_proj", "k_proj", "v_proj"};
}

std::vector<int64_t> list_qkv_features(const nn::HeadShape& heads, bool has_keys) {
  std::vector<int64_t> features(list_qkv_names(heads, has_keys).size(), heads.num_key_value_heads * heads.head_dim);
  features.front() = heads.num_heads * heads.head_dim;
  return features;
}

/// Declares the weights that published checkpoints have in blocks that read the keys and values of
/// another block.
void declare_unread_weights(const nn::ParameterScope& attention) {
  for (const char* const module : {"k_proj", "v_proj", "k_norm", "v_norm"})
    (attention / module).declare_unread("weight");
}

/// Returns a QkNorm or QueryNorm.
template <class HeadNorm>
HeadNorm make_head_norm(const nn::ParameterScope& scope, const GemmaBlockConfig& config) {
  return HeadNorm(scope / "self_attn", config.attention.heads.head_dim, config.model.rms_norm_eps,
                  config.model.norm_gain, config.attention.initial_query_gain);
}

}  // namespace

GemmaPerLayerGate::GemmaPerLayerGate(const nn::ParameterScope& scope, const GemmaConfig& config)
    : gate_(scope / "per_layer_input_gate", config.hidden_size, config.per_layer.features, /*bias=*/false),
      projection_(scope / "per_layer_projection", config.per_layer.features, config.hidden_size, /*bias=*/false),
      norm_(scope / "post_per_layer_input_norm", config.hidden_size, config.rms_norm_eps, config.norm_gain) {}

at::Tensor GemmaPerLayerGate::operator()(const at::Tensor& x, const at::Tensor& per_layer_input) const {
  return norm_.make_linear_input(projection_(nn::geglu(gate_(x), per_layer_input))).add_residual(x);
}

GemmaBlockConfig::GemmaBlockConfig(const GemmaConfig& model_config, int64_t block)
    : model(model_config),
      attention(model_config.get_attention(model_config.get_layer_type(block))),
      intermediate_size(model_config.get_intermediate_size(block)),
      reads_shared_key_value(model_config.get_key_value_block(block) != block),
      shares_key_value(model_config.shares_key_value(block)) {}

GemmaBlock::GemmaBlock(const nn::ParameterScope& scope, const GemmaBlockConfig& config)
    : head_shape_(config.attention.heads),
      reads_shared_key_value_(config.reads_shared_key_value),
      shares_key_value_(config.shares_key_value),
      value_norm_eps_(config.model.normalizes_values ? std::optional(config.model.rms_norm_eps) : std::nullopt),
      qkv_(scope / "self_attn", list_qkv_names(head_shape_, !reads_shared_key_value_), config.model.hidden_size,
           list_qkv_features(head_shape_, !reads_shared_key_value_), /*bias=*/false, nn::OutputColumns::kStrided),
      out_proj_(scope / "self_attn" / "o_proj", head_shape_.num_heads * head_shape_.head_dim, config.model.hidden_size,
                /*bias=*/false, /*initial_gain=*/1, nn::OutputColumns::kStrided),
      qk_norm_(reads_shared_key_value_ ? std::nullopt : std::optional(make_head_norm<nn::QkNorm>(scope, config))),
      query_norm_(reads_shared_key_value_ ? std::optional(make_head_norm<nn::QueryNorm>(scope, config)) : std::nullopt),
      gate_up_proj_(scope / "mlp", {"gate_proj", "up_proj"}, config.model.hidden_size,
                    {config.intermediate_size, config.intermediate_size}, /*bias=*/false, nn::OutputColumns::kAligned),
      down_proj_(scope / "mlp" / "down_proj", config.intermediate_size, config.model.hidden_size, /*bias=*/false,
                 /*initial_gain=*/1, nn::OutputColumns::kStrided),
      before_attention_(scope / "input_layernorm", config.model.hidden_size, config.model.rms_norm_eps,
                        config.model.norm_gain),
      after_attention_(scope / "post_attention_layernorm", config.model.hidden_size, config.model.rms_norm_eps,
                       config.model.norm_gain),
      before_mlp_(scope / "pre_feedforward_layernorm", config.model.hidden_size, config.model.rms_norm_eps,
                  config.model.norm_gain),
      after_mlp_(scope / "post_feedforward_layernorm", config.model.hidden_size, config.model.rms_norm_eps,
                 config.model.norm_gain) {
  if (reads_shared_key_value_) declare_unread_weights(scope / "self_attn");
  if (config.model.per_layer.features > 0) per_layer_gate_.emplace(scope, config.model);
  if (config.model.has_layer_scalar) {
    layer_scalar_ =
        scope.with_component(nn::Component::kBuffer).add_parameter("layer_scalar", {1}, nn::InitialValues::ones());
  }
}

nn::QueryKeyValue GemmaBlock::make_heads(const at::Tensor& x, const std::vector<at::Tensor>& inputs,
                                         const nn::RotaryTable& rotary_table) const {
  if (query_norm_) {
    const size_t count = inputs.size();
    return {query_norm_->split_and_rotate_heads(x, head_shape_.num_heads, rotary_table), inputs[count - 2],
            inputs[count - 1]};
  }
  nn::QueryKeyValue heads = qk_norm_->split_and_rotate_heads(x, head_shape_, rotary_table);
  if (value_norm_eps_) heads.value = nn::rms_norm_without_weight(heads.value, *value_norm_eps_);
  // Queries and keys have a common tensor, which shared keys would keep.
  if (shares_key_value_) heads.key = heads.key.contiguous();
  return heads;
}

GemmaBlock::AttentionResult GemmaBlock::attend(const at::Tensor& x, const std::vector<at::Tensor>& inputs,
                                               const GemmaBlockContext& context) const {
  const auto [query, key, value] = make_heads(x, inputs, context.layer_type_context->rotary_table);
  nn::GenerationCache* const cache = context.cache;
  if (cache != nullptr && !reads_shared_key_value_) cache->write(context.block, key, value);
  // Generated tokens are text, which attends causally, so the cache needs no image spans.
  const bool reads_cache = cache != nullptr && !cache->is_prefill();
  AttentionResult result{
      .output = (reads_cache ? cache->attend(context.key_value_block, query, context.layer_type_context->window)
                             : context.layer_type_context->attention(query, key, value))
                    .flatten(1)};
  if (shares_key_value_) result.key_value = {key, value};
  return result;
}

std::vector<at::Tensor> GemmaBlock::operator()(const std::vector<at::Tensor>& inputs,
                                               const GemmaBlockContext& context) const {
  nn::ResidualBranch attention_branch = qkv_.forward_branch(before_attention_.make_linear_input(inputs.front()));
  AttentionResult attention = attend(attention_branch.take_value(), inputs, context);
  at::Tensor hidden = after_attention_.make_linear_input(out_proj_(std::exchange(attention.output, {})))
                          .add_residual(attention_branch.stream);
  const nn::ResidualBranch mlp_branch = gate_up_proj_.forward_branch(before_mlp_.make_linear_input(hidden));
  hidden = after_mlp_.make_linear_input(down_proj_(nn::geglu(mlp_branch.value))).add_residual(mlp_branch.stream);
  if (per_layer_gate_) hidden = (*per_layer_gate_)(hidden, inputs[1]);
  if (layer_scalar_.defined()) hidden = hidden * layer_scalar_;
  std::vector<at::Tensor> outputs = std::move(attention.key_value);
  outputs.insert(outputs.begin(), std::move(hidden));
  return outputs;
}

}  // namespace vlmtrain::models
