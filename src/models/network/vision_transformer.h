#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/network/block_list.h"
#include "models/network/config.h"
#include "vlmtrain/image/byte_images.h"
#include "vlmtrain/nn/attention/attention.h"
#include "vlmtrain/nn/layers/linear.h"
#include "vlmtrain/nn/layers/norm.h"
#include "vlmtrain/nn/weights/parameters.h"

namespace vlmtrain::models {

/// A pre-norm transformer block.
class VisionBlock {
 public:
  VisionBlock(const nn::ParameterScope& scope, const VisionTransformerConfig& config);
  /// Maps x [rows, hidden] → [rows, hidden]; each tile is a segment
  at::Tensor operator()(const at::Tensor& x, const nn::Segments& tiles) const;

 private:
  /// Returns the outputs of the heads, [rows, hidden]. `qkv` is [rows, 3 · hidden]: query, key and
  /// value in this order.
  at::Tensor attend(const at::Tensor& qkv, const nn::Segments& tiles) const;

  int64_t num_heads_;
  Activation activation_;
  nn::LayerNorm norm1_, norm2_;
  nn::MergedLinear qkv_;
  nn::Linear out_proj_;
  nn::Linear fc1_, fc2_;
};

/// A vision transformer. Each tile attends to itself only.
class VisionTransformer {
 public:
  VisionTransformer(const nn::ParameterScope& scope, const VisionTransformerConfig& config);

  /// Encodes pixels [tiles, 3, image_size, image_size] to features [tiles · num_positions, hidden].
  /// The first `recomputed_blocks` blocks are recomputed in the backward pass.
  at::Tensor operator()(const image::ByteImages& pixels, int64_t recomputed_blocks) const;
  /// Returns the number of blocks that run.
  int64_t num_blocks() const { return blocks_.size(); }

 private:
  at::Tensor embed(const image::ByteImages& pixels) const;

  VisionTransformerConfig config_;
  at::Tensor class_embedding_;  // [hidden]; undefined: none
  at::Tensor patch_weight_,
      patch_bias_;                 // of a convolution, [hidden, 3, patch, patch]
  at::Tensor position_embedding_;  // [num_positions, hidden], or [1, num_positions, hidden]
  at::Tensor position_ids_;        // int64 [num_positions]; undefined: in order
  std::optional<nn::LayerNorm> pre_layernorm_;
  BlockList<VisionBlock> blocks_;
  nn::LayerNorm post_layernorm_;
};

}  // namespace vlmtrain::models
