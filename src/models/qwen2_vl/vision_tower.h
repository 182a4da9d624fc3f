#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <span>
#include <variant>
#include <vector>

#include "models/network/block_list.h"
#include "models/qwen2_vl/config.h"
#include "vlmtrain/data/sample/sample.h"
#include "vlmtrain/image/normalize.h"
#include "vlmtrain/nn/attention/attention.h"
#include "vlmtrain/nn/layers/linear.h"
#include "vlmtrain/nn/layers/norm.h"
#include "vlmtrain/nn/layers/position_embedding.h"
#include "vlmtrain/nn/weights/parameters.h"

namespace vlmtrain::models::qwen2_vl {

/// Order and attention segments of the patches of a pass, computed on the host from the grids
/// alone. Input patches are ordered by token (merge_size² in a row), the tokens of a frame row by
/// row. In the tower the tokens of a window are adjacent: windows of a frame row by row, truncated
/// at the frame's right and lower edge.
struct PatchLayout {
  std::vector<int64_t> token_order;          ///< [tokens], index of the token at each place of the tower
  std::vector<int64_t> inverse_token_order;  ///< [tokens], place in the tower of each token
  std::vector<int64_t> patch_order;          ///< [patches], as token_order; both empty without windows
  /// [2 · patches], rows of the patches in their frame, then columns; tower's order.
  std::vector<int64_t> positions;
  std::vector<int64_t> frame_patches;   ///< patches of each frame
  std::vector<int64_t> window_patches;  ///< patches of each window; empty without windows

  /// Computes the layout. REQUIRES: rows and columns are multiples of merge_size.
  static PatchLayout make(std::span<const data::PatchGrid> grids, const VisionConfig& config);
};

/// LayerNorm of Qwen2-VL or RMSNorm of Qwen2.5-VL.
class Norm {
 public:
  Norm(const nn::ParameterScope& scope, const VisionConfig& config);
  /// Returns x as the input of Linears.
  nn::LinearInput make_linear_input(const at::Tensor& x) const;
  at::Tensor operator()(const at::Tensor& x) const { return make_linear_input(x).value(); }

 private:
  std::variant<nn::LayerNorm, nn::RmsNorm> norm_;
};

/// MLP of two Linears with an activation between them, or the gated one.
class FeedForward {
 public:
  FeedForward(const nn::ParameterScope& scope, const VisionConfig& config);
  /// Returns the MLP's output, [patches, hidden]. `x`: a norm of the residual stream, to which the
  /// caller adds.
  at::Tensor operator()(const nn::LinearInput& x) const;

 private:
  bool is_gated_;
  Activation activation_;
  nn::Linears gate_up_proj_;  // gate and up of the gated MLP
  nn::Linear down_proj_;
};

/// Positions and attention segments of a block's input.
struct VisionContext {
  nn::Segments segments;  ///< frames or windows
  nn::RotaryTable rotary;
};

class VisionBlock {
 public:
  VisionBlock(const nn::ParameterScope& scope, const VisionConfig& config);
  /// Returns the block's output: [patches, hidden] → [patches, hidden].
  at::Tensor operator()(const at::Tensor& x, const VisionContext& context) const;

 private:
  /// Returns the heads' outputs: [patches, query | key | value] → [patches, hidden].
  at::Tensor attend(const at::Tensor& qkv, const VisionContext& context) const;

  nn::HeadShape heads_;
  Norm norm1_, norm2_;
  nn::Linear qkv_, out_proj_;
  FeedForward feed_forward_;
};

class VisionTower {
 public:
  VisionTower(const nn::ParameterScope& scope, const VisionConfig& config);

  /// Embeds pixels [patches, 3, temporal_patch_size · patch_size, patch_size] in input order →
  /// [patches, hidden] in the tower's order.
  at::Tensor embed(const image::BytePixels& pixels) const;
  /// Runs the blocks on embed()'s output.
  BlockOutputs operator()(const at::Tensor& embedded, const PatchLayout& layout, int64_t recomputed_blocks,
                          const HiddenStateOptions& options = {}) const;
  int64_t blocks() const { return blocks_.size(); }

 private:
  VisionConfig config_;
  at::Tensor patch_weight_;  // convolution [hidden, 3, frames, patch, patch]; stride = kernel, so it is a Linear
  at::Tensor patch_bias_;    // [hidden], or undefined
  at::Tensor rotary_frequencies_, rotary_axes_;  // [head_dim / 2], the row's pairs first, then the column's
  BlockList<VisionBlock> blocks_;
};

/// Merger of merge_size² patches into one token.
class PatchMerger {
 public:
  PatchMerger(const nn::ParameterScope& scope, const VisionConfig& config);
  /// Returns the tokens: [patches, hidden] → [tokens, output_size].
  at::Tensor operator()(const at::Tensor& x) const;

 private:
  int64_t merged_size_;
  Norm norm_;
  nn::Linear first_, second_;
};

}  // namespace vlmtrain::models::qwen2_vl
