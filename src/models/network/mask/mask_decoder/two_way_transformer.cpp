#include "models/network/mask/mask_decoder/two_way_transformer.h"

#include <ATen/TensorOperators.h>

#include "vlmtrain/nn/biased_attention.h"

namespace vlmtrain::models {

namespace {

constexpr double kFinalNormEpsilon = 1e-5;  // torch.nn.LayerNorm's, whatever layer_norm_eps says

/// x [masks, rows, in] → [masks, rows, out]
at::Tensor apply_linear(const nn::Linear& linear, const at::Tensor& x) {
  return linear(x.flatten(0, 1)).view({x.size(0), x.size(1), -1});
}

std::vector<TwoWayBlock> make_two_way_blocks(const nn::ParameterScope& scope, const TwoWayTransformerConfig& config) {
  std::vector<TwoWayBlock> blocks;
  for (int64_t i = 0; i < config.layers; ++i) blocks.emplace_back(scope / i, config, /*is_first=*/i == 0);
  return blocks;
}

ProjectedAttention make_cross_attention(const nn::ParameterScope& scope, const TwoWayTransformerConfig& config) {
  return {scope, config.hidden_size, config.hidden_size / config.attention_downsample_rate, config.heads};
}

}  // namespace

ProjectedAttention::ProjectedAttention(const nn::ParameterScope& scope, int64_t hidden, int64_t inner, int64_t heads)
    : heads_(heads),
      q_proj_(scope / "q_proj", hidden, inner, true),
      k_proj_(scope / "k_proj", hidden, inner, true),
      v_proj_(scope / "v_proj", hidden, inner, true),
      out_proj_(scope / "out_proj", inner, hidden, true) {}

at::Tensor ProjectedAttention::operator()(const at::Tensor& query, const at::Tensor& key,
                                          const at::Tensor& value) const {
  const auto split_heads = [this](const nn::Linear& linear, const at::Tensor& x) {
    const at::Tensor projected = apply_linear(linear, x);
    return projected.view({x.size(0), x.size(1), heads_, projected.size(2) / heads_});
  };
  return apply_linear(out_proj_, nn::batched_attention(split_heads(q_proj_, query), split_heads(k_proj_, key),
                                                       split_heads(v_proj_, value))
                                     .flatten(2));
}

TwoWayBlock::TwoWayBlock(const nn::ParameterScope& scope, const TwoWayTransformerConfig& config, bool is_first)
    : is_first_(is_first),
      activation_(config.activation),
      self_attn_(scope / "self_attn", config.hidden_size, config.hidden_size, config.heads),
      norm1_(scope / "layer_norm1", config.hidden_size, config.layer_norm_eps),
      cross_attn_token_to_image_(make_cross_attention(scope / "cross_attn_token_to_image", config)),
      norm2_(scope / "layer_norm2", config.hidden_size, config.layer_norm_eps),
      lin1_(scope / "mlp" / "lin1", config.hidden_size, config.mlp_dim, true),
      lin2_(scope / "mlp" / "lin2", config.mlp_dim, config.hidden_size, true),
      norm3_(scope / "layer_norm3", config.hidden_size, config.layer_norm_eps),
      norm4_(scope / "layer_norm4", config.hidden_size, config.layer_norm_eps),
      cross_attn_image_to_token_(make_cross_attention(scope / "cross_attn_image_to_token", config)) {}

TokensAndFeatures TwoWayBlock::operator()(const TokensAndFeatures& x, const at::Tensor& token_positions,
                                          const at::Tensor& feature_positions) const {
  at::Tensor tokens = x.tokens;
  if (is_first_) {
    tokens = norm1_(self_attn_(tokens, tokens, tokens));
  } else {
    const at::Tensor positioned = tokens + token_positions;
    tokens = norm1_(tokens + self_attn_(positioned, positioned, tokens));
  }
  const at::Tensor positioned_features = x.features + feature_positions;
  tokens = norm2_(tokens + cross_attn_token_to_image_(tokens + token_positions, positioned_features, x.features));
  tokens = norm3_(tokens + apply_linear(lin2_, activate(activation_, apply_linear(lin1_, tokens))));
  const at::Tensor attended = cross_attn_image_to_token_(positioned_features, tokens + token_positions, tokens);
  return {.tokens = tokens, .features = norm4_(x.features + attended)};
}

TwoWayTransformer::TwoWayTransformer(const nn::ParameterScope& scope, const TwoWayTransformerConfig& config)
    : blocks_(make_two_way_blocks(scope / "layers", config)),
      final_attention_(make_cross_attention(scope / "final_attn_token_to_image", config)),
      final_norm_(scope / "layer_norm_final_attn", config.hidden_size, kFinalNormEpsilon) {}

TokensAndFeatures TwoWayTransformer::operator()(const TokensAndFeatures& x, const at::Tensor& feature_positions) const {
  TokensAndFeatures state = x;
  for (const TwoWayBlock& block : blocks_) state = block(state, x.tokens, feature_positions);
  const at::Tensor attended =
      final_attention_(state.tokens + x.tokens, state.features + feature_positions, state.features);
  return {.tokens = final_norm_(state.tokens + attended), .features = state.features};
}

}  // namespace vlmtrain::models
