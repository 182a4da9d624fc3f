#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "models/network/config.h"
#include "vlmtrain/nn/layers/linear.h"
#include "vlmtrain/nn/layers/norm.h"
#include "vlmtrain/nn/weights/parameters.h"

namespace vlmtrain::models {

/// The tokens and the image features of each mask.
struct TokensAndFeatures {
  at::Tensor tokens;    ///< [masks, tokens, hidden]
  at::Tensor features;  ///< [masks, positions, hidden]
};

/// Attention between tokens and features, with query, key and value projections from `hidden` to
/// `inner` features.
class ProjectedAttention {
 public:
  ProjectedAttention(const nn::ParameterScope& scope, int64_t hidden, int64_t inner, int64_t num_heads);
  /// Maps query [masks, rows, hidden], key and value [masks, keys, hidden] → [masks, rows, hidden]
  at::Tensor operator()(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value) const;

 private:
  int64_t num_heads_;
  nn::Linear q_proj_, k_proj_, v_proj_, out_proj_;
};

/// A block of the two-way transformer: self-attention of the tokens, attention from tokens to
/// features, an MLP, and attention from features to tokens. A norm follows each sublayer
/// (post-norm).
class TwoWayBlock {
 public:
  /// Builds the block. In the first block tokens equal their positions, so its self-attention does
  /// not add positions and has no residual.
  TwoWayBlock(const nn::ParameterScope& scope, const TwoWayTransformerConfig& config, bool is_first);
  /// Returns the updated `x`. Adds `token_positions` [masks, tokens, hidden] and
  /// `feature_positions` [positions, hidden] to queries and keys.
  TokensAndFeatures operator()(const TokensAndFeatures& x, const at::Tensor& token_positions,
                               const at::Tensor& feature_positions) const;

 private:
  bool is_first_block_;
  Activation activation_;
  ProjectedAttention self_attn_;
  nn::LayerNorm norm1_;
  ProjectedAttention cross_attn_token_to_image_;
  nn::LayerNorm norm2_;
  nn::Linear lin1_, lin2_;
  nn::LayerNorm norm3_, norm4_;
  ProjectedAttention cross_attn_image_to_token_;
};

/// The transformer of SAM's mask decoder (Kirillov et al. 2023, arXiv 2304.02643, appendix A).
class TwoWayTransformer {
 public:
  TwoWayTransformer(const nn::ParameterScope& scope, const TwoWayTransformerConfig& config);
  /// Returns the updated `x`. `feature_positions`, [positions, hidden], are the position encodings
  /// of the features.
  TokensAndFeatures operator()(const TokensAndFeatures& x, const at::Tensor& feature_positions) const;

 private:
  std::vector<TwoWayBlock> blocks_;
  ProjectedAttention final_attention_;
  nn::LayerNorm final_norm_;
};

/// A transposed convolution with kernel and stride 2, computed as a Linear per output pixel. Names
/// and shapes are those of torch.nn.ConvTranspose2d.
class ConvTranspose2x2 {
 public:
  ConvTranspose2x2(const nn::ParameterScope& scope, int64_t in_channels, int64_t out_channels);
  /// Maps x [pixels, in] → [pixels · 4, out]: for each pixel its upper row, then its lower row
  at::Tensor operator()(const at::Tensor& x) const;

 private:
  at::Tensor weight_;  // [in, out, 2, 2]
  at::Tensor bias_;    // [out]
};

/// SAM's mask decoder (Kirillov et al. 2023, arXiv 2304.02643), reduced to one mask per prompt.
/// Includes the embedding that SAM's prompt encoder adds to the features if there is no mask
/// prompt. Names below the scope are those of transformers' SamModel: `mask_decoder`,
/// `prompt_encoder`, `shared_image_embedding`.
class MaskDecoder {
 public:
  MaskDecoder(const nn::ParameterScope& scope, const MaskDecoderConfig& config);

  /// Returns mask logits, fp32 [masks, 4 · side, 4 · side]. `features` [images · side², hidden]
  /// come from a MaskImageEncoder; `side` is the number of features along an image's side.
  /// `prompts` are [masks, hidden]. `image_indices`, int64 [masks] on the device, select each
  /// mask's image. REQUIRES: at least one mask.
  at::Tensor operator()(const at::Tensor& features, int64_t side, const at::Tensor& prompts,
                        const at::Tensor& image_indices) const;

 private:
  at::Tensor compute_position_encodings(int64_t side, const at::TensorOptions& options) const;
  at::Tensor upscale(const at::Tensor& x) const;
  at::Tensor compute_mask_weights(const at::Tensor& x) const;

  at::Tensor position_frequencies_;  // [2, hidden / 2]: columns, rows
  at::Tensor no_mask_embedding_;     // [1, hidden]
  at::Tensor iou_token_;             // [1, hidden]; mask tokens attend to it
  at::Tensor mask_tokens_;           // [mask tokens, hidden]
  TwoWayTransformer transformer_;
  ConvTranspose2x2 upscale1_;
  nn::LayerNorm upscale_norm_;
  ConvTranspose2x2 upscale2_;
  nn::Linear mask_mlp_input_, mask_mlp_hidden_, mask_mlp_output_;  // hypernetwork of the first mask token
};

}  // namespace vlmtrain::models
