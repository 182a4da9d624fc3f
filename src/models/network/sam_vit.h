#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "models/network/config.h"
#include "models/network/mask_encoder.h"
#include "vlmtrain/nn/layers/convolution.h"
#include "vlmtrain/nn/layers/linear.h"
#include "vlmtrain/nn/layers/norm.h"
#include "vlmtrain/nn/weights/parameters.h"

namespace vlmtrain::models {

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
