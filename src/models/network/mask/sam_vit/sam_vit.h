#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "models/network/mask/mask_encoder.h"
#include "models/network/mask/recomputed_blocks.h"
#include "models/network/mask/sam_vit/sam_vit_config.h"
#include "vlmtrain/nn/convolution.h"
#include "vlmtrain/nn/norm.h"
#include "vlmtrain/nn/parameters.h"

namespace vlmtrain::models {

/// SAM's image encoder (Kirillov et al. 2023, arXiv 2304.02643): a vision transformer most of whose blocks see windows
/// of the picture, and a neck of two convolutions. Names of transformers' SamVisionEncoder.
class SamVit : public MaskEncoder {
 public:
  SamVit(const nn::ParameterScope& scope, const SamVitConfig& config);

  at::Tensor operator()(const at::Tensor& pixels, int64_t recomputed_blocks) const override;
  int64_t blocks() const override { return blocks_.size(); }

 private:
  at::Tensor embed(const at::Tensor& pixels) const;
  at::Tensor neck(const at::Tensor& x) const;

  SamVitConfig config_;
  at::Tensor patch_weight_, patch_bias_;  // a convolution's [hidden, 3, patch, patch]; stride = kernel: it is a Linear
  at::Tensor pos_embed_;                  // [1, side, side, hidden]; undefined: none
  RecomputedBlocks blocks_;
  at::Tensor neck_weight_;  // a convolution's [channels, hidden, 1, 1], so it is a Linear
  nn::LayerNorm neck_norm1_;
  nn::Convolution neck_convolution_;
  nn::LayerNorm neck_norm2_;
};

}  // namespace vlmtrain::models
