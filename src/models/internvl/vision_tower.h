#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <variant>

#include "models/internvl/config.h"
#include "models/network/block_list.h"
#include "vlmtrain/image/normalize.h"
#include "vlmtrain/nn/linear.h"
#include "vlmtrain/nn/norm.h"
#include "vlmtrain/nn/parameters.h"
#include "vlmtrain/nn/segments.h"

namespace vlmtrain::models::internvl {

/// The LayerNorm or RMSNorm of a block.
class Norm {
 public:
  Norm(const nn::ParameterScope& scope, const VisionConfig& config);
  /// x as Linears read it.
  nn::LinearInput make_linear_input(const at::Tensor& x) const;

 private:
  std::variant<nn::LayerNorm, nn::RmsNorm> norm_;
};

class Attention {
 public:
  Attention(const nn::ParameterScope& scope, const VisionConfig& config);
  /// x [rows, hidden] → [rows, hidden]; each tile is a segment.
  /// x is a norm of the residual stream, which goes on beside what this makes.
  nn::Branch operator()(const nn::LinearInput& x, const nn::Segments& tiles) const;

 private:
  int64_t heads_;
  nn::Linears qkv_;
  nn::Linear out_proj_;
  std::optional<nn::RmsNorm> query_norm_, key_norm_;
};

/// x + s₁ · attention(norm(x)), and of that x + s₂ · mlp(norm(x)): a learnt factor for each feature of a branch
/// (Touvron et al. 2021, arXiv 2103.17239: LayerScale).
class VisionBlock {
 public:
  VisionBlock(const nn::ParameterScope& scope, const VisionConfig& config);
  /// [rows, hidden] → [rows, hidden]; each tile is a segment.
  at::Tensor operator()(const at::Tensor& x, const nn::Segments& tiles) const;

 private:
  Activation activation_;
  Attention attention_;
  nn::Linear fc1_, fc2_;
  Norm norm_before_, norm_after_;
  at::Tensor attention_scale_, mlp_scale_;  // [hidden]
};

/// InternViT (Chen et al. 2024, arXiv 2312.14238): a class token and learnt positions.
class VisionTower {
 public:
  VisionTower(const nn::ParameterScope& scope, const VisionConfig& config);

  /// Pixels [tiles, 3, image_size, image_size] → [tiles · patches, hidden], without the class token's row.
  at::Tensor operator()(const image::BytePixels& pixels, int64_t recomputed_blocks) const;
  int64_t blocks() const { return blocks_.size(); }

 private:
  at::Tensor embed(const image::BytePixels& pixels) const;

  VisionConfig config_;
  at::Tensor class_token_;                // [1, 1, hidden]
  at::Tensor positions_;                  // [1, rows_per_tile, hidden]
  at::Tensor patch_weight_, patch_bias_;  // a convolution's [hidden, 3, patch, patch]; stride = kernel, so a Linear
  BlockList<VisionBlock> blocks_;
  std::optional<nn::LayerNorm> final_norm_;
};

}  // namespace vlmtrain::models::internvl
