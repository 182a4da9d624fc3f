#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "models/network/config.h"
#include "models/network/mask_encoder.h"
#include "vlmtrain/nn/layers/convolution.h"
#include "vlmtrain/nn/layers/norm.h"
#include "vlmtrain/nn/weights/parameters.h"

namespace vlmtrain::models {

/// TinyViT (Wu et al. 2022, arXiv 2207.10666) as the image encoder of MobileSAM (Zhang et al. 2023,
/// arXiv 2306.14289) and TinySAM: two convolutions, stages of blocks with mergings between them,
/// and SAM's neck. Parameters have the names of MobileSAM's image_encoder, without norm_head and
/// head, which are not used for masks.
/// Weights fit any image_size, since windows do not depend on it. MBConvs, mergings and
/// TinyVitBlocks count as blocks for recomputation. DropPath is not implemented: MobileSAM's rate
/// is 0.
class TinyVit : public MaskImageEncoder {
 public:
  TinyVit(const nn::ParameterScope& scope, const TinyVitConfig& config);

  /// Implements MaskImageEncoder with config.out_channels channels.
  at::Tensor operator()(const at::Tensor& pixels, int64_t recomputed_blocks) const override;
  int64_t num_blocks() const override { return blocks_.size(); }

 private:
  at::Tensor embed(const at::Tensor& pixels) const;
  at::Tensor apply_neck(const at::Tensor& x) const;

  nn::ConvBatchNorm embedding_conv1_, embedding_conv2_;
  RecomputedBlocks blocks_;
  nn::Convolution neck_conv1_;
  nn::LayerNorm neck_norm1_;
  nn::Convolution neck_conv2_;
  nn::LayerNorm neck_norm2_;
};

}  // namespace vlmtrain::models
