#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "vlmtrain/nn/weights/parameters.h"

namespace vlmtrain::nn {

/// Of a square kernel over pictures, padded with kernel / 2 zeros on each side, so that stride 1 keeps the size.
struct ConvolutionShape {
  int64_t in_channels = 0;
  int64_t out_channels = 0;
  int64_t kernel = 1;
  int64_t stride = 1;
  int64_t groups = 1;  ///< as many as channels: depthwise
};

/// A convolution with the parameters `weight` [out, in / groups, kernel, kernel] and, on request, `bias`. ATen's own
/// kernels run it on CUDA (memory::open_device switches cuDNN off), so that a rehearsal knows its memory.
class Convolution {
 public:
  Convolution(const ParameterScope& scope, const ConvolutionShape& shape, bool bias);
  /// x [pictures, in, height, width] → [pictures, out, height / stride, width / stride], rounded up
  at::Tensor operator()(const at::Tensor& x) const;

 private:
  ConvolutionShape shape_;
  at::Tensor weight_;
  at::Tensor bias_;  // undefined: none
};

/// A convolution without bias, `c`, and a batch norm behind it, `bn`, whose statistics are those of the checkpoint:
/// they do not change in training, so that no sample depends on which others are beside it (Ioffe and Szegedy 2015,
/// arXiv 1502.03167, section 3.1, inference). Each pass folds the norm into weight and bias; gradients reach the norm's
/// own.
class ConvBatchNorm {
 public:
  /// `initial_scale`: what the norm's weight starts at, 0 at the end of some residual branches.
  ConvBatchNorm(const ParameterScope& scope, const ConvolutionShape& shape, double initial_scale = 1);
  /// As Convolution's.
  at::Tensor operator()(const at::Tensor& x) const;

 private:
  ConvolutionShape shape_;
  at::Tensor weight_;
  at::Tensor scale_, shift_;    // the norm's weight and bias, [out]
  at::Tensor mean_, variance_;  // [out]
};

}  // namespace vlmtrain::nn
