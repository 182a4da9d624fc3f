#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <span>
#include <string>
#include <variant>

#include "models/checkpoints/tensor_names.h"
#include "models/internvl/family.h"
#include "models/network/block_list.h"
#include "models/network/llama.h"
#include "vlmtrain/image/byte_images.h"
#include "vlmtrain/models/model.h"
#include "vlmtrain/nn/attention/attention.h"
#include "vlmtrain/nn/layers/linear.h"
#include "vlmtrain/nn/layers/norm.h"
#include "vlmtrain/nn/weights/parameters.h"

namespace vlmtrain::models::internvl {

/// Returns the map from parameter names to the keys of a checkpoint with these tensors. The keys
/// are `vision_tower…` and `language_model.model.layers…` as published, or `model.vision_tower…`
/// and `model.language_model.layers…` as in transformers 5.
StateDictKeyMap make_key_map(std::span<const std::string> tensors);

/// LayerNorm or RMSNorm of a block.
class Norm {
 public:
  Norm(const nn::ParameterScope& scope, const VisionConfig& config);
  /// Returns the normalized x [rows, hidden] as the input of Linears.
  nn::LinearInput make_linear_input(const at::Tensor& x) const;

 private:
  std::variant<nn::LayerNorm, nn::RmsNorm> norm_;
};

/// Self-attention of a block within each tile.
class Attention {
 public:
  Attention(const nn::ParameterScope& scope, const VisionConfig& config);
  /// Returns the attention's output [rows, hidden] and the residual stream. `x` [rows, hidden] is a
  /// norm of the residual stream; `tiles` has one segment per tile.
  nn::ResidualBranch operator()(const nn::LinearInput& x, const nn::Segments& tiles) const;

 private:
  int64_t num_heads_;
  nn::MergedLinear qkv_;
  nn::Linear out_proj_;
  std::optional<nn::RmsNorm> query_norm_, key_norm_;
};

/// A transformer block with LayerScale (Touvron et al. 2021, arXiv 2103.17239): y = x + s₁ ·
/// attention(norm(x)), then y + s₂ · mlp(norm(y)), with learned factors per feature.
class VisionBlock {
 public:
  VisionBlock(const nn::ParameterScope& scope, const VisionConfig& config);
  /// Maps x [rows, hidden] → [rows, hidden]. `tiles` has one segment per tile.
  at::Tensor operator()(const at::Tensor& x, const nn::Segments& tiles) const;

 private:
  Activation activation_;
  Attention attention_;
  nn::Linear fc1_, fc2_;
  Norm attention_norm_, mlp_norm_;
  at::Tensor attention_scale_, mlp_scale_;  // [hidden]
};

/// InternViT (Chen et al. 2024, arXiv 2312.14238), with a class token and learned positions.
class VisionTower {
 public:
  VisionTower(const nn::ParameterScope& scope, const VisionConfig& config);

  /// Encodes pixels [tiles, 3, image_size, image_size] to [tiles · patches, hidden], without class
  /// tokens.
  at::Tensor operator()(const image::ByteImages& pixels, int64_t recomputed_blocks) const;
  int64_t num_blocks() const { return blocks_.size(); }

 private:
  /// Returns the blocks' input [tiles · num_positions, hidden]: class token and patches of each
  /// tile.
  at::Tensor embed(const image::ByteImages& pixels) const;

  VisionConfig config_;
  at::Tensor class_token_;                // [1, 1, hidden]
  at::Tensor position_embeddings_;        // [1, num_positions, hidden]
  at::Tensor patch_weight_, patch_bias_;  // of a convolution, [hidden, 3, patch, patch]
  BlockList<VisionBlock> blocks_;
  std::optional<nn::LayerNorm> final_norm_;
};

/// Projector: pixel shuffle, LayerNorm and two Linears with an activation between them.
class Projector {
 public:
  Projector(const nn::ParameterScope& scope, const Config& config);
  /// Maps patches [tiles · patches, vision hidden] → [tiles · image_tokens_per_tile, text hidden]
  at::Tensor operator()(const at::Tensor& patches) const;

 private:
  int64_t patches_per_side_, scale_factor_;
  Activation activation_;
  nn::LayerNorm norm_;
  nn::Linear linear_1_, linear_2_;
};

/// InternViT, projector and a Qwen2, Qwen3 or Llama text model. Parameter names are those of
/// transformers 5's modules.
class Model final : public VisionLanguageModel {
 public:
  /// Builds the model. `key_map` maps parameter names to the checkpoint's.
  Model(Config config, StateDictKeyMap key_map, image::Normalization normalization,
        const nn::ParameterSettings& settings);

  ImageFeatures get_image_features(const VisionInput& vision, bool with_patch_features) const override;
  ModelOutput compute_hidden_states(const data::MicroBatch& batch, const ImageFeatures& image_features,
                                    const OutputRequest& request, nn::GenerationCache* cache) const override;
  nn::OutputProjection output_projection() const override { return text_.output_projection(); }
  int64_t num_vision_blocks() const override { return tower_.num_blocks(); }
  int64_t num_language_blocks() const override { return text_.num_blocks(); }
  std::string get_checkpoint_tensor_name(const std::string& parameter) const override {
    return key_map_.to_checkpoint_key(parameter);
  }

 private:
  Config config_;
  StateDictKeyMap key_map_;
  image::Normalization normalization_;
  VisionTower tower_;
  Projector projector_;
  CausalLlama text_;
};

}  // namespace vlmtrain::models::internvl
