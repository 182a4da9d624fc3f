#pragma once

#include <ATen/core/Tensor.h>
#include <nlohmann/json.hpp>

#include <cstdint>
#include <string>
#include <vector>

#include "models/network/activation.h"
#include "models/network/mask_encoder.h"
#include "vlmtrain/nn/layers/convolution.h"
#include "vlmtrain/nn/layers/linear.h"
#include "vlmtrain/nn/layers/norm.h"
#include "vlmtrain/nn/weights/parameters.h"

namespace vlmtrain::models {

/// The configuration of SAM's image encoder. The defaults are those of ViT-B.
struct SamVitConfig {
  int64_t hidden_size = 768;
  int64_t output_channels = 256;
  int64_t num_layers = 12;
  int64_t num_heads = 12;
  int64_t image_size = 1024;
  int64_t patch_size = 16;
  int64_t mlp_dim = 3072;
  double layer_norm_eps = 1e-6;
  Activation activation = Activation::kGelu;
  bool qkv_bias = true;
  bool uses_absolute_positions = true;
  bool uses_relative_positions = true;
  int64_t window_size = 14;                                      ///< side of the attention windows, in patches
  std::vector<int64_t> global_attention_blocks = {2, 5, 8, 11};  ///< blocks with attention over the full image

  /// Reads transformers' SamVisionConfig. `source` names the file in errors.
  static SamVitConfig from_json(const nlohmann::json& config, const std::string& source);

  /// Estimates the number of parameters.
  double num_parameters() const;

  /// Returns the number of patches along an image's side.
  int64_t patches_per_side() const { return image_size / patch_size; }
  /// Returns the window size of a block; 0: attention over the full image.
  int64_t get_window_size(int64_t block) const;
};

/// Attention over a square of patches with decomposed relative positions (Li et al. 2021, arXiv
/// 2112.01526, section 4.1). The score of a query and a key adds the products of the query with two
/// learned vectors, for their row distance and their column distance.
class SamVitAttention {
 public:
  /// Builds the attention. `side` is the side of the square in patches.
  SamVitAttention(const nn::ParameterScope& scope, const SamVitConfig& config, int64_t side);
  /// Maps x [windows · side², hidden] → the same shape, without the output projection
  at::Tensor operator()(const at::Tensor& x) const;
  /// Applies the output projection.
  at::Tensor apply_output_projection(const at::Tensor& x) const { return proj_(x); }

 private:
  at::Tensor compute_relative_position_bias(const at::Tensor& query) const;

  int64_t num_heads_;
  int64_t patches_per_side_;
  nn::Linear qkv_;
  nn::Linear proj_;
  at::Tensor rel_pos_h_, rel_pos_w_;  // [2 · side − 1, head_dim], by distance from −(side − 1) on; undefined: none
};

/// A pre-norm block of SAM's image encoder, with attention over the full image or within windows.
class SamVitBlock {
 public:
  /// Builds the block. `window` is the side of its windows in patches; 0: attention over the full
  /// image.
  SamVitBlock(const nn::ParameterScope& scope, const SamVitConfig& config, int64_t window);
  /// Maps x [images · side², hidden] → the same shape
  at::Tensor operator()(const at::Tensor& x) const;

 private:
  at::Tensor window_partition(const at::Tensor& x) const;
  at::Tensor window_unpartition(const at::Tensor& x) const;

  int64_t patches_per_side_;  // of the image
  int64_t window_size_;       // in patches; 0: full image
  int64_t windows_per_side_;  // along an image's side; the last window is padded
  Activation activation_;
  nn::LayerNorm norm1_;
  SamVitAttention attention_;
  nn::LayerNorm norm2_;
  nn::Linear lin1_, lin2_;
};

/// SAM's image encoder (Kirillov et al. 2023, arXiv 2304.02643): a vision transformer with windowed
/// attention in most blocks, and a neck of two convolutions. Names are those of transformers'
/// SamVisionEncoder.
class SamVit : public MaskImageEncoder {
 public:
  SamVit(const nn::ParameterScope& scope, const SamVitConfig& config);

  at::Tensor operator()(const at::Tensor& pixels, int64_t recomputed_blocks) const override;
  int64_t num_blocks() const override { return blocks_.size(); }

 private:
  at::Tensor embed(const at::Tensor& pixels) const;
  at::Tensor apply_neck(const at::Tensor& x) const;

  SamVitConfig config_;
  at::Tensor patch_weight_, patch_bias_;  // of a convolution, [hidden, 3, patch, patch]
  at::Tensor pos_embed_;                  // [1, side, side, hidden]; undefined: none
  RecomputedBlocks blocks_;
  at::Tensor neck_weight_;  // of a convolution, [channels, hidden, 1, 1]
  nn::LayerNorm neck_norm1_;
  nn::Convolution neck_convolution_;
  nn::LayerNorm neck_norm2_;
};

}  // namespace vlmtrain::models
