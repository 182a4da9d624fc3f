#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <span>
#include <variant>
#include <vector>

#include "models/network/block_list.h"
#include "models/qwen2_vl/config.h"
#include "vlmtrain/data/sample.h"
#include "vlmtrain/image/normalize.h"
#include "vlmtrain/nn/linear.h"
#include "vlmtrain/nn/norm.h"
#include "vlmtrain/nn/parameters.h"
#include "vlmtrain/nn/rotary.h"
#include "vlmtrain/nn/segments.h"

namespace vlmtrain::models::qwen2_vl {

/// How the tower orders the patches of a pass, and which of them see each other: computed on the host from the grids
/// alone. Patches come token by token (merge_size² in a row), the tokens of a frame row by row. In the tower the tokens
/// of a window lie side by side: windows of a frame row by row, cut off at the frame's right and lower edge.
struct PatchLayout {
  std::vector<int64_t> token_order;          ///< [tokens], the token that the tower's place i takes
  std::vector<int64_t> inverse_token_order;  ///< [tokens], its inverse: where in the tower token i is
  std::vector<int64_t> patch_order;          ///< [patches], as token_order; both empty where the tower has no windows
  std::vector<int64_t> positions;       ///< [2 · patches], row of each patch in its frame, then column; tower's order
  std::vector<int64_t> frame_patches;   ///< of each frame
  std::vector<int64_t> window_patches;  ///< of each window; empty where the tower has none

  /// REQUIRES: rows and columns are multiples of merge_size.
  static PatchLayout make(std::span<const data::PatchGrid> grids, const VisionConfig& config);
};

/// Qwen2-VL's LayerNorm or Qwen2.5-VL's RMSNorm.
class Norm {
 public:
  Norm(const nn::ParameterScope& scope, const VisionConfig& config);
  /// x as Linears read it.
  nn::LinearInput make_linear_input(const at::Tensor& x) const;
  at::Tensor operator()(const at::Tensor& x) const { return make_linear_input(x).value(); }

 private:
  std::variant<nn::LayerNorm, nn::RmsNorm> norm_;
};

/// Two Linears with an activation between them, or the gated one.
class FeedForward {
 public:
  FeedForward(const nn::ParameterScope& scope, const VisionConfig& config);
  /// x is a norm of the residual stream, to which this adds.
  at::Tensor operator()(const nn::LinearInput& x) const;

 private:
  bool is_gated_;
  Activation activation_;
  nn::Linears gate_up_proj_;  // gate and up where there is a gate
  nn::Linear down_proj_;
};

/// What a block sees beside its input.
struct VisionContext {
  nn::Segments segments;  ///< frames or windows
  nn::RotaryTable rotary;
};

class VisionBlock {
 public:
  VisionBlock(const nn::ParameterScope& scope, const VisionConfig& config);
  /// [patches, hidden] → [patches, hidden]
  at::Tensor operator()(const at::Tensor& x, const VisionContext& context) const;

 private:
  /// The heads' values of [patches, query | key | value], [patches, hidden].
  at::Tensor attend(const at::Tensor& qkv, const VisionContext& context) const;

  nn::HeadShape heads_;
  Norm norm1_, norm2_;
  nn::Linear qkv_, out_proj_;
  FeedForward feed_forward_;
};

class VisionTower {
 public:
  VisionTower(const nn::ParameterScope& scope, const VisionConfig& config);

  /// Pixels [patches, 3, temporal_patch_size · patch_size, patch_size], whose order is the tower's → [patches, hidden].
  at::Tensor embed(const image::BytePixels& pixels) const;
  /// Runs the blocks over that.
  BlockOutputs operator()(const at::Tensor& embedded, const PatchLayout& layout, int64_t recomputed_blocks,
                          const HiddenStateOptions& options = {}) const;
  int64_t blocks() const { return blocks_.size(); }

 private:
  VisionConfig config_;
  at::Tensor patch_weight_;  // a convolution's [hidden, 3, frames, patch, patch]; stride = kernel, so it is a Linear
  at::Tensor patch_bias_;    // [hidden], or undefined
  at::Tensor rotary_frequencies_, rotary_axes_;  // [head_dim / 2], first the pairs of the row, then of the column
  BlockList<VisionBlock> blocks_;
};

/// Each square of merge_size² patches becomes one token.
class PatchMerger {
 public:
  PatchMerger(const nn::ParameterScope& scope, const VisionConfig& config);
  /// [patches, hidden] → [tokens, output_size]
  at::Tensor operator()(const at::Tensor& x) const;

 private:
  int64_t merged_size_;
  Norm norm_;
  nn::Linear first_, second_;
};

}  // namespace vlmtrain::models::qwen2_vl
