#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "vlmtrain/nn/convolution.h"
#include "vlmtrain/nn/parameters.h"

namespace vlmtrain::models {

/// An inverted bottleneck (Sandler et al. 2018, arXiv 1801.04381), with GELU behind its residual sum too:
/// gelu(x + conv3(gelu(conv2(gelu(conv1(x)))))), of which conv2 sees 3×3 of one channel, the others one pixel.
class MBConv {
 public:
  /// `expanded_channels`: channels in between.
  MBConv(const nn::ParameterScope& scope, int64_t channels, int64_t expanded_channels);
  /// x [pictures, channels, height, width] → the same shape
  at::Tensor operator()(const at::Tensor& x) const;

 private:
  nn::ConvBatchNorm conv1_, conv2_, conv3_;
};

/// What stands between two stages: conv3(gelu(conv2(gelu(conv1(x))))), shaped as MBConv's, of which conv1 widens and
/// conv2 halves height and width where `stride` is 2.
class PatchMerging {
 public:
  PatchMerging(const nn::ParameterScope& scope, int64_t channels, int64_t out_channels, int64_t stride);
  /// x [pictures, channels, height, width] → [pictures, out_channels, height / stride, width / stride], rounded up
  at::Tensor operator()(const at::Tensor& x) const;

 private:
  nn::ConvBatchNorm conv1_, conv2_, conv3_;
};

}  // namespace vlmtrain::models
