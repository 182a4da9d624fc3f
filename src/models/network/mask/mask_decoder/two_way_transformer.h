#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "models/network/activation.h"
#include "vlmtrain/nn/linear.h"
#include "vlmtrain/nn/norm.h"
#include "vlmtrain/nn/parameters.h"

namespace vlmtrain::models {

struct TwoWayTransformerConfig {
  int64_t hidden_size = 256;
  int64_t mlp_dim = 2048;
  int64_t layers = 2;
  int64_t heads = 8;
  int64_t attention_downsample_rate = 2;  ///< how much narrower attention between tokens and features is
  double layer_norm_eps = 1e-6;
  Activation activation = Activation::kRelu;
};

/// The tokens of masks, and the features that each mask is drawn on.
struct TokensAndFeatures {
  at::Tensor tokens;    ///< [masks, tokens, hidden]
  at::Tensor features;  ///< [masks, places, hidden]
};

/// Attention with Linears of its own before and behind it, `inner` features wide in between.
class ProjectedAttention {
 public:
  ProjectedAttention(const nn::ParameterScope& scope, int64_t hidden, int64_t inner, int64_t heads);
  /// query [masks, rows, hidden], key and value [masks, keys, hidden] → [masks, rows, hidden]
  at::Tensor operator()(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value) const;

 private:
  int64_t heads_;
  nn::Linear q_proj_, k_proj_, v_proj_, out_proj_;
};

/// Tokens see each other and the features, features see the tokens; norms stand behind the sublayers.
class TwoWayBlock {
 public:
  /// The first block has tokens that are nothing but their own positions: it adds none to them, and keeps only what
  /// their attention gives.
  TwoWayBlock(const nn::ParameterScope& scope, const TwoWayTransformerConfig& config, bool is_first);
  /// `token_positions` [masks, tokens, hidden] and `feature_positions` [places, hidden] are added to what attends.
  TokensAndFeatures operator()(const TokensAndFeatures& x, const at::Tensor& token_positions,
                               const at::Tensor& feature_positions) const;

 private:
  bool is_first_;
  Activation activation_;
  ProjectedAttention self_attn_;
  nn::LayerNorm norm1_;
  ProjectedAttention cross_attn_token_to_image_;
  nn::LayerNorm norm2_;
  nn::Linear lin1_, lin2_;
  nn::LayerNorm norm3_, norm4_;
  ProjectedAttention cross_attn_image_to_token_;
};

/// What SAM's mask decoder begins with (Kirillov et al. 2023, arXiv 2304.02643, appendix A).
class TwoWayTransformer {
 public:
  TwoWayTransformer(const nn::ParameterScope& scope, const TwoWayTransformerConfig& config);
  /// `feature_positions` [places, hidden]
  TokensAndFeatures operator()(const TokensAndFeatures& x, const at::Tensor& feature_positions) const;

 private:
  std::vector<TwoWayBlock> blocks_;
  ProjectedAttention final_attention_;
  nn::LayerNorm final_norm_;
};

}  // namespace vlmtrain::models
