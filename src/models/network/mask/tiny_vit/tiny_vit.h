#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "models/network/mask/mask_encoder.h"
#include "models/network/mask/recomputed_blocks.h"
#include "models/network/mask/tiny_vit/tiny_vit_config.h"
#include "vlmtrain/nn/convolution.h"
#include "vlmtrain/nn/norm.h"
#include "vlmtrain/nn/parameters.h"

namespace vlmtrain::models {

/// TinyViT (Wu et al. 2022, arXiv 2207.10666) as MobileSAM (Zhang et al. 2023, arXiv 2306.14289) and TinySAM encode
/// pictures with it: two convolutions, stages of blocks with a merging behind each but the last, and SAM's neck.
/// Parameters have the names of MobileSAM's image_encoder; its norm_head and head, which no mask is made of, are none.
///
/// Weights fit any image_size: windows do not depend on it. Blocks, for recomputation, are MBConvs, mergings and
/// TinyVitBlocks. DropPath is not implemented: pretrained weights are tuned without it (MobileSAM's rate is 0).
class TinyVit : public MaskEncoder {
 public:
  TinyVit(const nn::ParameterScope& scope, const TinyVitConfig& config);

  /// As MaskEncoder says; channels are config.out_channels.
  at::Tensor operator()(const at::Tensor& pixels, int64_t recomputed_blocks) const override;
  int64_t blocks() const override { return blocks_.size(); }

 private:
  at::Tensor embed(const at::Tensor& pixels) const;
  at::Tensor neck(const at::Tensor& x) const;

  nn::ConvBatchNorm embedding1_, embedding2_;
  RecomputedBlocks blocks_;
  nn::Convolution neck1_;
  nn::LayerNorm neck_norm1_;
  nn::Convolution neck2_;
  nn::LayerNorm neck_norm2_;
};

}  // namespace vlmtrain::models
