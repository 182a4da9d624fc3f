#include "vlmtrain/nn/layers/convolution.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/rsqrt.h>

#include <vector>

namespace vlmtrain::nn {

namespace {

constexpr double kBatchNormEpsilon = 1e-5;  // torch.nn.BatchNorm2d's

// Randomly initialized models have no statistics to normalize by. Without this gain of the weights
// and this range of the norm's biases, images pass convolutions and GELUs nearly linearly, and the
// first layer norm after them keeps little more than the sign of the brightness.
constexpr double kGainBeforeGelu = 1.5;    // 1 / √E[gelu(x)²] for x ~ N(0, 1)
constexpr double kInitialBiasBound = 0.5;  // not tuned

at::Tensor make_convolution_weight(const ParameterScope& scope, const ConvolutionShape& shape, double gain = 1) {
  const int64_t in_channels = shape.in_channels / shape.groups;
  return scope.add_parameter("weight", {shape.out_channels, in_channels, shape.kernel_size, shape.kernel_size},
                             InitialValues::kaiming(in_channels * shape.kernel_size * shape.kernel_size, gain));
}

at::Tensor convolve(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                    const ConvolutionShape& shape) {
  const int64_t padding = shape.kernel_size / 2;
  return at::convolution(x, weight, bias, {shape.stride, shape.stride}, {padding, padding}, /*dilation=*/{1, 1},
                         /*transposed=*/false, /*output_padding=*/{0, 0}, shape.groups);
}

}  // namespace

Convolution::Convolution(const ParameterScope& scope, const ConvolutionShape& shape, bool bias)
    : shape_(shape), weight_(make_convolution_weight(scope, shape)) {
  if (bias) bias_ = scope.add_parameter("bias", {shape.out_channels}, InitialValues::zeros());
}

at::Tensor Convolution::operator()(const at::Tensor& x) const {
  return convolve(x, weight_, bias_, shape_);
}

ConvBatchNorm::ConvBatchNorm(const ParameterScope& scope, const ConvolutionShape& shape, double initial_scale)
    : shape_(shape), weight_(make_convolution_weight(scope / "c", shape, kGainBeforeGelu)) {
  const ParameterScope norm = scope / "bn";
  const ParameterScope statistics = norm.with_component(Component::kBuffer);
  scale_ = norm.add_parameter("weight", {shape.out_channels}, {.mean = initial_scale, .deviation = 0});
  shift_ = norm.add_parameter("bias", {shape.out_channels}, InitialValues::uniform(kInitialBiasBound * initial_scale));
  mean_ = statistics.add_parameter("running_mean", {shape.out_channels}, InitialValues::zeros());
  variance_ = statistics.add_parameter("running_var", {shape.out_channels}, InitialValues::ones());
}

at::Tensor ConvBatchNorm::operator()(const at::Tensor& x) const {
  const at::Tensor scale = scale_.to(at::kFloat) * at::rsqrt(variance_.to(at::kFloat) + kBatchNormEpsilon);
  const at::Tensor shift = shift_.to(at::kFloat) - mean_.to(at::kFloat) * scale;
  const at::Tensor weight = weight_.to(at::kFloat) * scale.view({-1, 1, 1, 1});
  return convolve(x, weight.to(x.scalar_type()), shift.to(x.scalar_type()), shape_);
}

}  // namespace vlmtrain::nn
