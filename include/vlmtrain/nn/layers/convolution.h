#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "vlmtrain/nn/weights/parameters.h"

namespace vlmtrain::nn {

/// The shape of a convolution with a square kernel. Images are padded with ⌊kernel_size / 2⌋ zeros
/// on each side, so an odd kernel_size with stride 1 keeps the image size.
struct ConvolutionShape {
  int64_t in_channels = 0;
  int64_t out_channels = 0;
  int64_t kernel_size = 1;  ///< width and height, in pixels
  int64_t stride = 1;
  int64_t groups = 1;  ///< 1, or the number of channels for a depthwise convolution
};

/// A 2D convolution with the parameters `weight` [out, in / groups, kernel_size, kernel_size] and
/// optionally `bias` [out]. On CUDA it uses ATen's own kernels (memory::open_device disables
/// cuDNN), so a dry run measures its memory.
class Convolution {
 public:
  /// Adds the parameters under `scope`.
  Convolution(const ParameterScope& scope, const ConvolutionShape& shape, bool bias);
  /// Maps x [images, in, height, width] to [images, out, ⌈height / stride⌉, ⌈width / stride⌉].
  at::Tensor operator()(const at::Tensor& x) const;

 private:
  ConvolutionShape shape_;
  at::Tensor weight_;
  at::Tensor bias_;  // undefined without a bias
};

/// A convolution without bias followed by a batch norm with the fixed statistics of the checkpoint
/// (Ioffe and Szegedy 2015, arXiv 1502.03167, section 3.1, inference), so the result for a sample
/// does not depend on its batch. The parameters are under `c` (convolution) and `bn` (norm) of the
/// scope. Each forward pass folds the norm into weight and bias; gradients reach the parameters of
/// the norm.
class ConvBatchNorm {
 public:
  /// Adds the parameters under `scope`. `initial_scale`: initial weight of the norm, 0 at the end
  /// of some residual branches.
  ConvBatchNorm(const ParameterScope& scope, const ConvolutionShape& shape, double initial_scale = 1);
  /// Maps x to the result; shapes as in Convolution.
  at::Tensor operator()(const at::Tensor& x) const;

 private:
  ConvolutionShape shape_;
  at::Tensor weight_;
  at::Tensor scale_, shift_;    // the norm's weight and bias, [out]
  at::Tensor mean_, variance_;  // [out]
};

}  // namespace vlmtrain::nn
