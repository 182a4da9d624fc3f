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
#include "vlmtrain/image/normalize.h"
#include "vlmtrain/nn/linear.h"
#include "vlmtrain/nn/norm.h"
#include "vlmtrain/nn/parameters.h"
#include "vlmtrain/nn/segments.h"

namespace vlmtrain::models {

/// Which entry of the position table a patch takes.
enum class PatchPositions {
  kInOrder,
  kBucketed,  ///< as Idefics3 finds them: by rounded fractions of the tile's side
};

/// What a checkpoint calls the modules; the defaults are transformers' names.
struct VisionTransformerNames {
  std::string_view patch_embedding = "embeddings.patch_embedding";
  std::string_view position_embedding = "embeddings.position_embedding.weight";
  std::string_view blocks = "encoder.layers";
  std::string_view norm1 = "layer_norm1", norm2 = "layer_norm2";
  std::string_view attention = "self_attn", qkv = "qkv_proj";  ///< the second of one that gives all three
  std::string_view mlp1 = "mlp.fc1", mlp2 = "mlp.fc2";
  std::string_view post_layernorm = "post_layernorm";
};

/// A vision transformer with norms before its sublayers (Dosovitskiy et al. 2020, arXiv 2010.11929): what SigLIP's
/// (models/siglip) and CLIP's (models/clip) have in common, and where they differ.
struct VisionTransformerConfig {
  int64_t hidden_size = 768;
  int64_t intermediate_size = 3072;
  int64_t layers = 12;
  int64_t heads = 12;
  int64_t image_size = 224;
  int64_t patch_size = 16;
  double layer_norm_eps = 1e-6;
  Activation activation = Activation::kGeluTanh;
  PatchPositions positions = PatchPositions::kInOrder;
  bool class_token = false;    ///< one before the patches
  bool patch_bias = true;      ///< of the patch embedding
  bool pre_layernorm = false;  ///< a norm of the embeddings, before the first block
  bool pooling_head = false;   ///< SigLIP's, after the last norm; its weights are kept and never run
  bool fused_qkv = false;      ///< one Linear gives the three, in this order
  bool qkv_bias = true;
  bool batched_positions = false;  ///< the position table has a leading dimension of 1
  VisionTransformerNames names = {};

  /// Blocks that run; the output is what leaves the last of them. Nothing: all, and the norm behind them. The weights
  /// of what does not run are kept, so that a saved checkpoint is complete.
  std::optional<int64_t> feature_blocks = std::nullopt;

  /// Reads the sizes under transformers' keys; what is absent stays as in `defaults`. `source` names the file in
  /// errors.
  static VisionTransformerConfig from_json(const nlohmann::json& config, const VisionTransformerConfig& defaults,
                                           const std::string& source);

  /// About how many parameters it has.
  double num_parameters() const;

  int64_t patches_per_side() const { return image_size / patch_size; }
  int64_t patches() const { return patches_per_side() * patches_per_side(); }
  /// Rows that the transformer gives for a tile.
  int64_t rows_per_tile() const { return patches() + (class_token ? 1 : 0); }
};

class VisionBlock {
 public:
  VisionBlock(const nn::ParameterScope& scope, const VisionTransformerConfig& config);
  /// [rows, hidden] → [rows, hidden]; each tile is a segment.
  at::Tensor operator()(const at::Tensor& x, const nn::Segments& tiles) const;

 private:
  /// The heads' values of [rows, query | key | value], [rows, hidden].
  at::Tensor attend(const at::Tensor& qkv, const nn::Segments& tiles) const;

  int64_t heads_;
  Activation activation_;
  nn::LayerNorm norm1_, norm2_;
  nn::Linears qkv_;
  nn::Linear out_proj_;
  nn::Linear fc1_, fc2_;
};

class VisionTransformer {
 public:
  VisionTransformer(const nn::ParameterScope& scope, const VisionTransformerConfig& config);

  /// Pixels [tiles, 3, image_size, image_size] → [tiles · rows_per_tile, hidden].
  at::Tensor operator()(const image::BytePixels& pixels, int64_t recomputed_blocks) const;
  /// Those that run.
  int64_t blocks() const { return blocks_.size(); }

 private:
  at::Tensor embed(const image::BytePixels& pixels) const;

  VisionTransformerConfig config_;
  at::Tensor class_embedding_;  // [hidden]; undefined: none
  at::Tensor patch_weight_,
      patch_bias_;                 // a convolution's [hidden, 3, patch, patch]; stride = kernel, so it is a Linear
  at::Tensor position_embedding_;  // [rows_per_tile, hidden], or [1, rows_per_tile, hidden]
  at::Tensor position_ids_;        // int64 [rows_per_tile]; undefined: in order
  std::optional<nn::LayerNorm> pre_layernorm_;
  BlockList<VisionBlock> blocks_;
  nn::LayerNorm post_layernorm_;
};

/// The vision transformer of CLIP (Radford et al. 2021, arXiv 2103.00020): `vision_config` of model_type
/// clip_vision_model, with transformers' defaults. `source` names the file in errors.
VisionTransformerConfig clip_config(const nlohmann::json& config, const std::string& source);

/// The SigLIP vision transformer (Zhai et al. 2023, arXiv 2303.15343): `vision_config` of model_type
/// siglip_vision_model, with transformers' defaults. `source` names the file in errors.
VisionTransformerConfig siglip_config(const nlohmann::json& config, const std::string& source);

/// The same transformer in the form of Idefics3's `vision_config`: without a head, and with other defaults.
VisionTransformerConfig idefics3_vision_config(const nlohmann::json& config, const std::string& source);

}  // namespace vlmtrain::models
