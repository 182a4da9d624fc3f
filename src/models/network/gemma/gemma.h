#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "models/network/block_list.h"
#include "models/network/gemma/gemma_block.h"
#include "models/network/gemma/gemma_config.h"
#include "models/network/gemma/gemma_per_layer.h"
#include "vlmtrain/data/sample/sample.h"
#include "vlmtrain/models/model.h"
#include "vlmtrain/nn/generation_cache.h"
#include "vlmtrain/nn/layers/norm.h"
#include "vlmtrain/nn/layers/output_projection.h"
#include "vlmtrain/nn/weights/parameters.h"

namespace vlmtrain::models {

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
  /// Returns the per-layer input of each block; empty if the model has none. `embeddings` are the
  /// result of embed().
  std::vector<at::Tensor> embed_per_layer(const data::MicroBatch& batch, const at::Tensor& embeddings) const;
  std::shared_ptr<const GemmaLayerTypeContext> make_layer_type_context(
      GemmaLayerType type, const data::MicroBatch& batch, const std::vector<int64_t>& tokens_per_image) const;

  GemmaConfig config_;
  at::Tensor embedding_;  // [vocabulary, hidden]
  std::optional<GemmaPerLayerEmbedding> per_layer_embedding_;
  at::Tensor full_frequencies_, sliding_frequencies_;  // [head_dim / 2] of each type
  BlockList<GemmaBlock> blocks_;
  nn::RmsNorm norm_;
  at::Tensor output_weight_;  // [vocabulary, hidden]
};

}  // namespace vlmtrain::models
