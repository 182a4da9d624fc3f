#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "models/gemma3/family.h"
#include "models/llava/model.h"
#include "models/network/block_list.h"
#include "models/network/vision_transformer.h"
#include "vlmtrain/data/sample/sample.h"
#include "vlmtrain/image/pixel_transforms.h"
#include "vlmtrain/models/model.h"
#include "vlmtrain/nn/attention/span_attention.h"
#include "vlmtrain/nn/generation_cache.h"
#include "vlmtrain/nn/layers/linear.h"
#include "vlmtrain/nn/layers/norm.h"
#include "vlmtrain/nn/layers/position_embedding.h"
#include "vlmtrain/nn/weights/parameters.h"

namespace vlmtrain::models::gemma3 {

/// Inputs that all blocks of one layer type share in a forward pass.
struct LayerTypeContext {
  nn::SpanAttention attention;    ///< with bidirectional spans for the tokens of each image
  std::optional<int64_t> window;  ///< sliding window, in tokens; nothing: full attention
  nn::RotaryTable rotary_table;
};

/// Inputs of one block in a forward pass.
struct BlockContext {
  std::shared_ptr<const LayerTypeContext> layer_type_context;
  nn::GenerationCache* cache = nullptr;  ///< null except in generation
  int64_t block = 0;                     ///< index of the block in the cache
};

/// A decoder block with QK-norm and with norms before and after attention and MLP.
class Block {
 public:
  Block(const nn::ParameterScope& scope, const TextConfig& config);
  /// Maps x [tokens, hidden] → [tokens, hidden]
  at::Tensor operator()(const at::Tensor& x, const BlockContext& context) const;

 private:
  /// Returns the heads' outputs [tokens, heads · head_dim] for qkv [tokens, query | key | value].
  at::Tensor attend(const at::Tensor& qkv, const BlockContext& context) const;

  nn::HeadShape head_shape_;
  nn::MergedLinear qkv_;
  nn::Linear out_proj_;
  nn::QkNorm qk_norm_;
  nn::MergedLinear gate_up_proj_;
  nn::Linear down_proj_;
  nn::RmsNorm before_attention_, after_attention_, before_mlp_, after_mlp_;
};

/// Gemma 3's text model with its output projection.
class TextModel {
 public:
  /// Builds the text model. `output` is the scope of the output projection; it is not used if
  /// `is_tied`. `tokens_per_image` is the number of tokens per image or crop; they attend to each
  /// other in both directions.
  TextModel(const nn::ParameterScope& scope, const TextConfig& config, int64_t tokens_per_image, bool is_tied,
            const nn::ParameterScope& output);

  /// Implements VisionLanguageModel::compute_hidden_states().
  ModelOutput operator()(const data::MicroBatch& batch, const ImageFeatures& image_features,
                         const OutputRequest& request, const TowerRecomputeCounts& recomputed_blocks,
                         nn::GenerationCache* cache) const;

  nn::OutputProjection output_projection() const { return {.weight = output_weight_}; }
  int64_t num_blocks() const { return blocks_.size(); }

 private:
  /// Returns the batch's embeddings [tokens, hidden], with those of image tokens replaced by
  /// `image_features`.
  at::Tensor embed(const data::MicroBatch& batch, const at::Tensor& image_features) const;
  std::shared_ptr<const LayerTypeContext> make_layer_type_context(LayerType type, const data::MicroBatch& batch) const;

  TextConfig config_;
  int64_t tokens_per_image_;
  at::Tensor embedding_;                               // [vocabulary, hidden]
  at::Tensor full_frequencies_, sliding_frequencies_;  // [head_dim / 2]
  BlockList<Block> blocks_;
  nn::RmsNorm norm_;
  at::Tensor output_weight_;  // [vocabulary, hidden]
};

/// Projector from patches to image tokens: averages squares of patches, normalizes the means and
/// multiplies them by a matrix.
class Projector {
 public:
  Projector(const nn::ParameterScope& scope, const Config& config);
  /// Maps patches [images · patches, vision hidden] → [images · image tokens, text hidden]
  at::Tensor operator()(const at::Tensor& patches) const;

 private:
  int64_t tokens_per_side_, patches_per_token_;  // both along one side of the image
  nn::RmsNorm norm_;
  at::Tensor weight_;  // [vision hidden, text hidden]; not a Linear, so LoRA does not adapt it
};

/// SigLIP tower, projector and Gemma 3 text model. Parameter names are those of transformers.
class Model final : public VisionLanguageModel {
 public:
  /// Builds the model. `key_map` maps parameter names to checkpoint keys (llava::make_key_map()).
  Model(Config config, StateDictKeyMap key_map, image::Normalization normalization, nn::ParameterSettings settings);

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
  VisionTransformer tower_;
  Projector projector_;
  TextModel text_;
};

}  // namespace vlmtrain::models::gemma3
