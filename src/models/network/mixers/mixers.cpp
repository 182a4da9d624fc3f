#include "models/network/mixers/mixers.h"

#include "models/network/block_list.h"
#include "vlmtrain/nn/attention/attention.h"
#include "vlmtrain/nn/attention/output_gate.h"
#include "vlmtrain/nn/generation_cache.h"

namespace vlmtrain::models {

namespace {

/// With an output gate, the query projection also has the gates: twice the columns.
int64_t count_query_columns(const LlamaConfig& config) {
  return (config.attention_output_gate ? 2 : 1) * config.num_heads * config.head_dim;
}

}  // namespace

AttentionMixer::AttentionMixer(const nn::ParameterScope& scope, const LlamaConfig& config)
    : head_shape_{.num_heads = config.num_heads,
                  .num_key_value_heads = config.num_key_value_heads,
                  .head_dim = config.head_dim},
      has_output_gate_(config.attention_output_gate),
      qkv_(scope, {"q_proj", "k_proj", "v_proj"}, config.hidden_size,
           {count_query_columns(config), head_shape_.num_key_value_heads * head_shape_.head_dim,
            head_shape_.num_key_value_heads * head_shape_.head_dim},
           config.qkv_bias, nn::OutputColumns::kStrided),
      out_proj_(scope / config.names.attention_output, config.num_heads * config.head_dim, config.hidden_size,
                config.attention_output_bias, compute_residual_gain(config.num_layers)) {
  if (config.qk_norm) qk_norm_.emplace(scope, config.head_dim, config.rms_norm_eps, config.norm_gain);
}

at::Tensor AttentionMixer::attend(const at::Tensor& qkv, const MixerContext& context) const {
  const auto [query, key, value] = qk_norm_ ? qk_norm_->split_and_rotate_heads(qkv, head_shape_, context.rotary_table)
                                            : nn::split_and_rotate_heads(qkv, head_shape_, context.rotary_table);
  const at::Tensor attention_output = context.cache != nullptr
                                          ? context.cache->attention(context.block, query, key, value)
                                          : nn::attention(query, key, value, context.samples,
                                                          /*is_causal=*/true, context.sliding_window);
  return attention_output.flatten(1);
}

at::Tensor AttentionMixer::operator()(const nn::LinearInput& x, const MixerContext& context) const {
  nn::ResidualBranch branch = qkv_.forward_branch(x);
  if (!has_output_gate_) return out_proj_(attend(branch.take_value(), context), /*residual=*/branch.stream);
  auto [qkv, gate] = nn::split_output_gate(branch.take_value(), head_shape_);
  return out_proj_(nn::apply_output_gate(attend(qkv, context), gate), /*residual=*/branch.stream);
}

DeltaNetMixer::DeltaNetMixer(const nn::ParameterScope& scope, const LlamaConfig& config)
    : delta_net_(scope, config.hidden_size, config.delta_net, config.rms_norm_eps),
      out_proj_(scope / "out_proj", config.delta_net.num_outputs(), config.hidden_size, /*bias=*/false,
                compute_residual_gain(config.num_layers)) {}

nn::GatedDeltaNet::Output DeltaNetMixer::mix(const nn::LinearInput& x, const MixerContext& context) const {
  if (context.cache == nullptr) return delta_net_(x, context.chunk_layout);
  nn::DeltaNetState& state = context.cache->get_delta_net_state(context.block);
  if (context.cache->is_prefill()) return delta_net_.prefill(x, *context.chunk_layout, context.samples, state);
  return delta_net_.decode(x, state);
}

at::Tensor DeltaNetMixer::operator()(const nn::LinearInput& x, const MixerContext& context) const {
  const nn::GatedDeltaNet::Output output = mix(x, context);
  return out_proj_(output.value, /*residual=*/output.stream);
}

}  // namespace vlmtrain::models
