#pragma once

#include <ATen/core/Tensor.h>
#include <nlohmann/json.hpp>

#include <cstdint>
#include <string>
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

/// Sizes of SAM's mask decoder; the defaults are those of all its published checkpoints.
struct MaskDecoderConfig {
  TwoWayTransformerConfig transformer = {};
  int64_t mask_tokens = 4;  ///< of which the first draws the mask that is asked for alone

  int64_t hidden_size() const { return transformer.hidden_size; }

  /// Reads transformers' SamMaskDecoderConfig. `source` names the file in errors.
  static MaskDecoderConfig from_json(const nlohmann::json& config, const std::string& source);

  /// About how many parameters it has.
  double num_parameters() const;
};

/// A transposed convolution whose stride is its kernel, 2: each pixel becomes four, each by a Linear of its own. Names
/// and shapes of torch.nn.ConvTranspose2d.
class ConvTranspose2x2 {
 public:
  ConvTranspose2x2(const nn::ParameterScope& scope, int64_t in_channels, int64_t out_channels);
  /// [pixels, in] → [pixels · 4, out]: of each pixel those in its upper row, then those in its lower
  at::Tensor operator()(const at::Tensor& x) const;

 private:
  at::Tensor weight_;  // [in, out, 2, 2]
  at::Tensor bias_;    // [out]
};

/// SAM's mask decoder (Kirillov et al. 2023, arXiv 2304.02643) as far as it draws one mask for each prompt, with what
/// its prompt encoder adds to pictures without mask prompts. Names below the scope are those of transformers' SamModel:
/// `mask_decoder`, `prompt_encoder`, `shared_image_embedding`.
class MaskDecoder {
 public:
  MaskDecoder(const nn::ParameterScope& scope, const MaskDecoderConfig& config);

  /// `features` [pictures · side², hidden] as MaskEncoder's; `prompts` [masks, hidden]; `image_indices` int64
  /// [masks] on the device: which features each mask is drawn on → logits fp32 [masks, 4 · side, 4 · side].
  /// REQUIRES: at least one mask.
  at::Tensor operator()(const at::Tensor& features, int64_t side, const at::Tensor& prompts,
                        const at::Tensor& image_indices) const;

 private:
  at::Tensor compute_positions(int64_t side, const at::TensorOptions& options) const;
  at::Tensor upscale(const at::Tensor& x) const;
  at::Tensor compute_mask_weights(const at::Tensor& x) const;

  at::Tensor frequencies_;  // [2, hidden / 2]: across, down
  at::Tensor no_mask_;      // [1, hidden]
  at::Tensor iou_token_;    // [1, hidden]; tokens of masks see it
  at::Tensor mask_tokens_;  // [mask tokens, hidden]
  TwoWayTransformer transformer_;
  ConvTranspose2x2 upscale1_;
  nn::LayerNorm upscale_norm_;
  ConvTranspose2x2 upscale2_;
  nn::Linear proj_in_, layer_, proj_out_;  // of the first mask token
};

}  // namespace vlmtrain::models
