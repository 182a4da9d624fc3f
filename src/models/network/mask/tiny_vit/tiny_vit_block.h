#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "models/network/mask/tiny_vit/tiny_vit_config.h"
#include "models/network/mask/tiny_vit/window_attention.h"
#include "vlmtrain/nn/convolution.h"
#include "vlmtrain/nn/linear.h"
#include "vlmtrain/nn/norm.h"
#include "vlmtrain/nn/parameters.h"

namespace vlmtrain::models {

/// A block of all stages but the first: attention in windows, a convolution of each channel by itself through which the
/// windows see each other, and an MLP (Wu et al. 2022, arXiv 2207.10666, section 3.3).
class TinyVitBlock {
 public:
  /// `offsets`: make_window_offsets(stage.window)
  TinyVitBlock(const nn::ParameterScope& scope, const TinyVitConfig& config, const TinyVitStage& stage,
               const at::Tensor& offsets);

  /// x [pictures, width, height, columns] → the same shape, a view of [pictures, height, columns, width]
  at::Tensor operator()(const at::Tensor& x) const;

 private:
  at::Tensor mlp(const at::Tensor& x) const;

  int64_t window_;
  WindowAttention attention_;
  nn::LayerNorm norm_;
  nn::Linear fc1_, fc2_;
  nn::ConvBatchNorm local_convolution_;
};

}  // namespace vlmtrain::models
