#pragma once

#include <ATen/core/Tensor.h>
#include <nlohmann/json.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/network/activation.h"
#include "models/network/block_list.h"
#include "vlmtrain/image/byte_images.h"
#include "vlmtrain/nn/attention/attention.h"
#include "vlmtrain/nn/layers/linear.h"
#include "vlmtrain/nn/layers/norm.h"
#include "vlmtrain/nn/weights/parameters.h"

namespace vlmtrain::models {

/// The order in which patches are mapped to rows of the position table.
enum class PatchPositionOrder {
  kSequential,  ///< row i for patch i
  kBucketed,    ///< by rounded fractions of the tile's side, as in Idefics3
};

/// The module names in a checkpoint; the defaults are transformers'.
struct VisionTransformerModuleNames {
  std::string_view patch_embedding = "embeddings.patch_embedding";
  std::string_view position_embedding = "embeddings.position_embedding.weight";
  std::string_view blocks = "encoder.layers";
  std::string_view norm1 = "layer_norm1", norm2 = "layer_norm2";
  std::string_view attention = "self_attn", qkv = "qkv_proj";  ///< `qkv` names the fused projection
  std::string_view fc1 = "mlp.fc1", fc2 = "mlp.fc2";
  std::string_view post_layernorm = "post_layernorm";
};

/// The configuration of a vision transformer with pre-norm blocks (Dosovitskiy et al. 2020, arXiv
/// 2010.11929). It covers SigLIP and CLIP.
struct VisionTransformerConfig {
  int64_t hidden_size = 768;
  int64_t intermediate_size = 3072;
  int64_t num_layers = 12;
  int64_t num_heads = 12;
  int64_t image_size = 224;
  int64_t patch_size = 16;
  double layer_norm_eps = 1e-6;
  Activation activation = Activation::kGeluTanh;
  PatchPositionOrder positions = PatchPositionOrder::kSequential;
  bool has_class_token = false;    ///< a learned token before the patches
  bool has_patch_bias = true;      ///< whether the patch embedding has a bias
  bool has_pre_layernorm = false;  ///< a norm before the first block
  bool has_pooling_head = false;   ///< SigLIP's head after the final norm; its weights are kept but not used
  bool has_fused_qkv = false;      ///< one Linear for query, key and value, in this order
  bool qkv_bias = true;
  bool has_batched_position_embedding = false;  ///< the position table has a leading dimension of 1
  VisionTransformerModuleNames names = {};

  /// Number of blocks to run. The output of the last one is returned without the final norm.
  /// If unset: all blocks and the final norm run. Weights of other blocks are kept, so that a saved
  /// checkpoint is complete.
  std::optional<int64_t> num_feature_blocks = std::nullopt;

  /// Reads sizes and activation under transformers' keys. Absent values are taken from `defaults`.
  /// `source` names the file in errors.
  static VisionTransformerConfig from_json(const nlohmann::json& config, const VisionTransformerConfig& defaults,
                                           const std::string& source);

  /// Estimates the number of parameters.
  double num_parameters() const;

  int64_t patches_per_side() const { return image_size / patch_size; }
  int64_t num_patches() const { return patches_per_side() * patches_per_side(); }
  /// Returns the number of output rows per tile.
  int64_t num_positions() const { return num_patches() + (has_class_token ? 1 : 0); }
};

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

/// Returns the configuration of CLIP's vision transformer (Radford et al. 2021, arXiv 2103.00020)
/// from a `vision_config` of model_type clip_vision_model, with transformers' defaults. `source`
/// names the file in errors.
VisionTransformerConfig read_clip_config(const nlohmann::json& config, const std::string& source);

/// Returns the configuration of the SigLIP vision transformer (Zhai et al. 2023, arXiv 2303.15343)
/// from a `vision_config` of model_type siglip_vision_model, with transformers' defaults. `source`
/// names the file in errors.
VisionTransformerConfig read_siglip_config(const nlohmann::json& config, const std::string& source);

/// Returns the configuration of Idefics3's variant of SigLIP, with bucketed positions, no pooling
/// head, and transformers' defaults. `source` names the file in errors.
VisionTransformerConfig read_idefics3_vision_config(const nlohmann::json& config, const std::string& source);

}  // namespace vlmtrain::models
