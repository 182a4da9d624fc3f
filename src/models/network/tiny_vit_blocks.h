#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "models/network/tiny_vit.h"
#include "vlmtrain/nn/convolution.h"
#include "vlmtrain/nn/linear.h"
#include "vlmtrain/nn/norm.h"
#include "vlmtrain/nn/parameters.h"

namespace vlmtrain::models {

/// [pictures, channels, height, width], as convolutions take it → [pictures, height, width, channels], as norms and
/// Linears do, contiguous.
inline at::Tensor to_channels_last(const at::Tensor& x) {
  return x.permute({0, 2, 3, 1}).contiguous();
}

/// The way back, a view.
inline at::Tensor to_channels_first(const at::Tensor& x) {
  return x.permute({0, 3, 1, 2});
}

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

/// Which entry of a head's biases each pair of positions in a window takes, by how many rows and columns lie between
/// them: |Δrow| · window + |Δcolumn|, the order in which the original meets the offsets. int64 [window⁴], on `device`.
at::Tensor make_window_offsets(int64_t window, at::Device device);

/// Attention among the positions of a window, whose scores have a learnt bias for each offset (Graham et al. 2021,
/// arXiv 2104.01136, section 4.2).
class WindowAttention {
 public:
  /// `offsets`: of make_window_offsets; blocks may share them. `initial_gain`: of the projection.
  WindowAttention(const nn::ParameterScope& scope, const TinyVitStage& stage, at::Tensor offsets, double initial_gain);

  /// x [windows, window², width] → the same shape
  at::Tensor operator()(const at::Tensor& x) const;

 private:
  at::Tensor bias(int64_t positions, at::ScalarType dtype) const;

  int64_t heads_;
  nn::LayerNorm norm_;
  nn::Linear qkv_;  // head by head, each with its query, key and value
  nn::Linear projection_;
  at::Tensor biases_;   // [heads, window²]
  at::Tensor offsets_;  // int64 [window⁴]
};

/// x [pictures, height, width, channels] → its windows [pictures · rows of them · columns of them, window², channels],
/// with zeros below and to the right where windows do not divide it.
at::Tensor window_partition(const at::Tensor& x, int64_t window);

/// The way back to the `sizes` of x.
at::Tensor window_unpartition(const at::Tensor& windows, int64_t window, at::IntArrayRef sizes);

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
