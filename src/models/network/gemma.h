#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "models/network/block_list.h"
#include "models/network/gemma_config.h"
#include "vlmtrain/data/sample/sample.h"
#include "vlmtrain/models/model.h"
#include "vlmtrain/nn/attention/span_attention.h"
#include "vlmtrain/nn/generation_cache.h"
#include "vlmtrain/nn/layers/linear.h"
#include "vlmtrain/nn/layers/norm.h"
#include "vlmtrain/nn/layers/output_projection.h"
#include "vlmtrain/nn/layers/position_embedding.h"
#include "vlmtrain/nn/weights/parameters.h"

namespace vlmtrain::models {

/// Inputs that all blocks of one layer type share in a forward pass.
struct GemmaLayerTypeContext {
  nn::SpanAttention attention;
  std::optional<int64_t> window;  ///< as GemmaAttentionConfig::window
  nn::RotaryTable rotary_table;
};

/// Inputs of one block in a forward pass.
struct GemmaBlockContext {
  std::shared_ptr<const GemmaLayerTypeContext> layer_type_context;
  nn::GenerationCache* cache = nullptr;  ///< null except in generation
  int64_t block = 0;                     ///< index of the block in the cache
};

/// The configuration of one block.
struct GemmaBlockConfig {
  const GemmaConfig& model;
  const GemmaAttentionConfig& attention;
};

/// A decoder block with QK-norm and with norms before and after attention and MLP.
class GemmaBlock {
 public:
  GemmaBlock(const nn::ParameterScope& scope, const GemmaBlockConfig& config);
  /// Maps x [tokens, hidden] → [tokens, hidden]
  at::Tensor operator()(const at::Tensor& x, const GemmaBlockContext& context) const;

 private:
  /// Returns the heads' outputs [tokens, heads · head_dim] for qkv [tokens, query | key | value].
  at::Tensor attend(const at::Tensor& qkv, const GemmaBlockContext& context) const;

  nn::HeadShape head_shape_;
  std::optional<double> value_norm_eps_;  // nothing: values are not normalized
  nn::MergedLinear qkv_;
  nn::Linear out_proj_;
  nn::QkNorm qk_norm_;
  nn::MergedLinear gate_up_proj_;
  nn::Linear down_proj_;
  nn::RmsNorm before_attention_, after_attention_, before_mlp_, after_mlp_;
  at::Tensor layer_scalar_;  // [1]; undefined: 1
};

/// Gemma's text model with its output projection.
class GemmaModel {
 public:
  /// Builds the text model. `output` is the scope of the output projection; it is not used if
  /// `is_tied`.
  GemmaModel(const nn::ParameterScope& scope, const GemmaConfig& config, bool is_tied,
             const nn::ParameterScope& output);

  /// Implements VisionLanguageModel::compute_hidden_states(). `tokens_per_image` has the number of
  /// tokens of each image or crop of the batch, in the order of batch.image_token_positions.
  ModelOutput operator()(const data::MicroBatch& batch, const ImageFeatures& image_features,
                         const std::vector<int64_t>& tokens_per_image, const OutputRequest& request,
                         const TowerRecomputeCounts& recomputed_blocks, nn::GenerationCache* cache) const;

  nn::OutputProjection output_projection() const {
    return {.weight = output_weight_, .logit_soft_cap = config_.logit_soft_cap};
  }
  int64_t num_blocks() const { return blocks_.size(); }

 private:
  /// Returns the batch's embeddings [tokens, hidden], with those of image tokens replaced by
  /// `image_features`.
  at::Tensor embed(const data::MicroBatch& batch, const at::Tensor& image_features) const;
  std::shared_ptr<const GemmaLayerTypeContext> make_layer_type_context(
      GemmaLayerType type, const data::MicroBatch& batch, const std::vector<int64_t>& tokens_per_image) const;

  GemmaConfig config_;
  at::Tensor embedding_;                               // [vocabulary, hidden]
  at::Tensor full_frequencies_, sliding_frequencies_;  // [head_dim / 2] of each type
  BlockList<GemmaBlock> blocks_;
  nn::RmsNorm norm_;
  at::Tensor output_weight_;  // [vocabulary, hidden]
};

}  // namespace vlmtrain::models
