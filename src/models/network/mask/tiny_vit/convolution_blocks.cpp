#include "models/network/mask/tiny_vit/convolution_blocks.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/gelu.h>

namespace vlmtrain::models {

namespace {

nn::ConvolutionShape pointwise(int64_t in_channels, int64_t out_channels) {
  return {.in_channels = in_channels, .out_channels = out_channels};
}

nn::ConvolutionShape depthwise(int64_t channels, int64_t stride) {
  return {.in_channels = channels, .out_channels = channels, .kernel = 3, .stride = stride, .groups = channels};
}

}  // namespace

MBConv::MBConv(const nn::ParameterScope& scope, int64_t channels, int64_t expanded_channels)
    : conv1_(scope / "conv1", pointwise(channels, expanded_channels)),
      conv2_(scope / "conv2", depthwise(expanded_channels, /*stride=*/1)),
      conv3_(scope / "conv3", pointwise(expanded_channels, channels), /*initial_scale=*/0) {}

at::Tensor MBConv::operator()(const at::Tensor& x) const {
  return at::gelu(x + conv3_(at::gelu(conv2_(at::gelu(conv1_(x))))));
}

PatchMerging::PatchMerging(const nn::ParameterScope& scope, int64_t channels, int64_t out_channels, int64_t stride)
    : conv1_(scope / "conv1", pointwise(channels, out_channels)),
      conv2_(scope / "conv2", depthwise(out_channels, stride)),
      conv3_(scope / "conv3", pointwise(out_channels, out_channels)) {}

at::Tensor PatchMerging::operator()(const at::Tensor& x) const {
  return conv3_(at::gelu(conv2_(at::gelu(conv1_(x)))));
}

}  // namespace vlmtrain::models
