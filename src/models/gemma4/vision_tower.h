#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <span>

#include "models/gemma4/family.h"
#include "models/media/patch_format.h"
#include "models/network/block_list.h"
#include "vlmtrain/data/sample/sample_shape.h"
#include "vlmtrain/image/byte_images.h"
#include "vlmtrain/nn/attention/attention.h"
#include "vlmtrain/nn/layers/linear.h"
#include "vlmtrain/nn/layers/norm.h"
#include "vlmtrain/nn/layers/position_embedding.h"
#include "vlmtrain/nn/weights/parameters.h"

namespace vlmtrain::models::gemma4 {

/// A Linear without bias whose input and output are clamped to ranges of the checkpoint, or a plain
/// one (Gemma4ClippableLinear).
class ClippableLinear {
 public:
  ClippableLinear(const nn::ParameterScope& scope, int64_t in_features, int64_t out_features, bool is_clipped,
                  double initial_gain = 1);
  /// Maps x [rows, in] → [rows, out]
  at::Tensor operator()(const at::Tensor& x) const;

 private:
  nn::Linear linear_;
  at::Tensor input_min_, input_max_, output_min_, output_max_;  // 0-dimensional; undefined: no range
};

/// Inputs that all blocks share in a forward pass.
struct TowerContext {
  nn::Segments images;  ///< the patches of each image or frame
  nn::RotaryTable rotary_table;
};

/// A block of the tower, with norms before and after attention and MLP.
class TowerBlock {
 public:
  TowerBlock(const nn::ParameterScope& scope, const TowerConfig& config);
  /// Maps x [patches, hidden] → [patches, hidden]
  at::Tensor operator()(const at::Tensor& x, const TowerContext& context) const;

 private:
  nn::HeadShape head_shape_;
  double norm_eps_;
  ClippableLinear query_, key_, value_, out_proj_;
  nn::QkNorm qk_norm_;
  ClippableLinear gate_, up_, down_;
  nn::RmsNorm before_attention_, after_attention_, before_mlp_, after_mlp_;
};

/// The vision tower with its pooling. Images have their own resolution; an image or a frame of a
/// video attends to itself only.
class VisionTower {
 public:
  VisionTower(const nn::ParameterScope& scope, const TowerConfig& config, const PatchShape& patches);

  /// Encodes pixels [patches, 3, patch_size, patch_size] of `grids` to features [tokens, hidden]. The
  /// first `recomputed_blocks` blocks are recomputed in the backward pass. With `patch_features`, also
  /// returns the tower's output before pooling, [patches, hidden].
  at::Tensor operator()(const image::ByteImages& pixels, std::span<const data::PatchGrid> grids,
                        int64_t recomputed_blocks, at::Tensor* patch_features) const;
  int64_t num_blocks() const { return blocks_.size(); }

 private:
  /// Averages the patches of each token, scales and standardizes them: [patches, hidden] → [tokens,
  /// hidden].
  at::Tensor pool(const at::Tensor& patches) const;

  TowerConfig config_;
  PatchFormat patch_format_;
  nn::Linear patch_projection_;
  at::Tensor position_table_;                    // [2, num_positions, hidden]: by column, by row
  at::Tensor rotary_frequencies_, rotary_axes_;  // [head_dim / 2]
  BlockList<TowerBlock> blocks_;
  at::Tensor feature_bias_, feature_scale_;  // [hidden]; undefined: not standardized
};

}  // namespace vlmtrain::models::gemma4
