#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "models/network/config.h"
#include "models/network/mask_encoder.h"
#include "vlmtrain/nn/layers/convolution.h"
#include "vlmtrain/nn/layers/linear.h"
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

/// Permutes [images, channels, height, width], the layout of convolutions, to contiguous [images,
/// height, width, channels], the layout of norms and Linears.
inline at::Tensor to_channels_last(const at::Tensor& x) {
  return x.permute({0, 2, 3, 1}).contiguous();
}

/// Inverts to_channels_last(). Returns a view without copying.
inline at::Tensor to_channels_first(const at::Tensor& x) {
  return x.permute({0, 3, 1, 2});
}

/// An inverted bottleneck (Sandler et al. 2018, arXiv 1801.04381) with GELU after the residual sum:
/// gelu(x + conv3(gelu(conv2(gelu(conv1(x)))))). conv2 is depthwise 3×3, the others are 1×1.
class MBConv {
 public:
  /// Builds the block. `expanded_channels` is the number of channels between its convolutions.
  MBConv(const nn::ParameterScope& scope, int64_t channels, int64_t expanded_channels);
  /// Maps x [images, channels, height, width] → the same shape
  at::Tensor operator()(const at::Tensor& x) const;

 private:
  nn::ConvBatchNorm conv1_, conv2_, conv3_;
};

/// The downsampling between two stages: conv3(gelu(conv2(gelu(conv1(x))))), with kernels as in
/// MBConv. conv1 widens to `out_channels`; conv2 has stride `stride`.
class PatchMerging {
 public:
  PatchMerging(const nn::ParameterScope& scope, int64_t channels, int64_t out_channels, int64_t stride);
  /// Maps x [images, channels, height, width] → [images, out_channels, height / stride, width /
  /// stride], rounded up
  at::Tensor operator()(const at::Tensor& x) const;

 private:
  nn::ConvBatchNorm conv1_, conv2_, conv3_;
};

/// Returns the index into the bias table for each pair of positions in a window, |Δrow| · window +
/// |Δcolumn|, as int64 [window⁴] on `device`. The bias table has the same order as in the original
/// code.
at::Tensor make_bias_indices(int64_t window, at::Device device);

/// Attention within windows, with a learned bias per offset (Graham et al. 2021, arXiv 2104.01136,
/// section 4.2).
class WindowAttention {
 public:
  /// Builds the attention. `bias_indices` come from make_bias_indices(); blocks may share them.
  /// `initial_gain` scales the output projection's initial weights.
  WindowAttention(const nn::ParameterScope& scope, const TinyVitStage& stage, at::Tensor bias_indices,
                  double initial_gain);

  /// Maps x [windows, window², width] → the same shape
  at::Tensor operator()(const at::Tensor& x) const;

 private:
  at::Tensor gather_attention_bias(int64_t positions, at::ScalarType dtype) const;

  int64_t num_heads_;
  nn::LayerNorm norm_;
  nn::Linear qkv_;  // per head: query, key and value
  nn::Linear projection_;
  at::Tensor attention_biases_;  // [heads, window²]
  at::Tensor bias_indices_;      // int64 [window⁴]
};

/// Splits x [images, height, width, channels] into windows [images · rows · columns, window²,
/// channels], zero-padded at the bottom and at the right.
at::Tensor window_partition(const at::Tensor& x, int64_t window);

/// Inverts window_partition(). `sizes` are the sizes of the x that was split.
at::Tensor window_unpartition(const at::Tensor& windows, int64_t window, at::IntArrayRef sizes);

/// A block of all stages except the first: windowed attention, a depthwise convolution that
/// connects the windows, and an MLP (Wu et al. 2022, arXiv 2207.10666, section 3.3).
class TinyVitBlock {
 public:
  /// Builds the block. `bias_indices` are make_bias_indices(stage.window).
  TinyVitBlock(const nn::ParameterScope& scope, const TinyVitConfig& config, const TinyVitStage& stage,
               const at::Tensor& bias_indices);

  /// Maps x [images, width, height, columns] → the same shape, a view of [images, height, columns,
  /// width]
  at::Tensor operator()(const at::Tensor& x) const;

 private:
  at::Tensor apply_mlp(const at::Tensor& x) const;

  int64_t window_size_;
  WindowAttention attention_;
  nn::LayerNorm norm_;
  nn::Linear fc1_, fc2_;
  nn::ConvBatchNorm local_convolution_;
};

}  // namespace vlmtrain::models
