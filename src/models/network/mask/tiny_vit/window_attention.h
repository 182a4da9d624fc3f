#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "models/network/mask/tiny_vit/tiny_vit_config.h"
#include "vlmtrain/nn/linear.h"
#include "vlmtrain/nn/norm.h"
#include "vlmtrain/nn/parameters.h"

namespace vlmtrain::models {

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

}  // namespace vlmtrain::models
