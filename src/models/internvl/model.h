#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <span>
#include <string>
#include <variant>

#include "models/checkpoints/tensor_names.h"
#include "models/internvl/config.h"
#include "models/network/block_list.h"
#include "models/network/llama.h"
#include "vlmtrain/image/normalize.h"
#include "vlmtrain/models/model.h"
#include "vlmtrain/nn/linear.h"
#include "vlmtrain/nn/norm.h"
#include "vlmtrain/nn/parameters.h"
#include "vlmtrain/nn/segments.h"

namespace vlmtrain::models::internvl {

/// How a checkpoint with these tensors spells the parameters' names: the published ones `vision_tower…` and
/// `language_model.model.layers…`, transformers 5's modules `model.vision_tower…` and `model.language_model.layers…`.
StateDictKeyMap make_key_map(std::span<const std::string> tensors);

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

/// Pixel shuffle, LayerNorm and two Linears with an activation between them.
class Projector {
 public:
  Projector(const nn::ParameterScope& scope, const Config& config);
  /// The tower's features of whole tiles [tiles · patches, vision hidden] → [tiles · image_tokens_per_tile, text
  /// hidden]
  at::Tensor operator()(const at::Tensor& patches) const;

 private:
  int64_t side_, scale_factor_;
  Activation activation_;
  nn::LayerNorm norm_;
  nn::Linear first_, second_;
};

/// InternViT, projector and a Qwen2, Qwen3 or Llama text model. Parameter names are those of transformers 5's modules.
class Model final : public VisionLanguageModel {
 public:
  /// `key_map`: how the checkpoint spells the parameters.
  Model(Config config, StateDictKeyMap key_map, image::Normalization normalization,
        const nn::ParameterSettings& settings);

  ImageFeatures get_image_features(const VisionInput& vision, bool with_dense) const override;
  ModelOutput hidden_states(const data::MicroBatch& batch, const ImageFeatures& image_features,
                            const OutputRequest& request, nn::KeyValueCache* cache) const override;
  const at::Tensor& output_weight() const override { return text_.output_weight(); }
  int64_t vision_blocks() const override { return tower_.blocks(); }
  int64_t language_blocks() const override { return text_.blocks(); }
  std::string checkpoint_name(const std::string& parameter) const override {
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
