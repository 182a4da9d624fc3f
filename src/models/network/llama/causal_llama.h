#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "models/network/llama/llama.h"

namespace vlmtrain::models {

/// A Llama-type text model with its output projection: all of a vision-language model behind the projector.
class CausalLlama {
 public:
  /// `output`: the place of the projection's weight, where config.tie_word_embeddings does not make the embedding it.
  CausalLlama(const nn::ParameterScope& scope, const LlamaConfig& config, const nn::ParameterScope& output);

  /// See VisionLanguageModel::hidden_states.
  ModelOutput hidden_states(const data::MicroBatch& batch, const ImageFeatures& image_features,
                            const OutputRequest& request, const TowerRecompute& recomputed_blocks,
                            nn::KeyValueCache* cache) const {
    return text_(batch, image_features, request, recomputed_blocks, cache);
  }

  const at::Tensor& output_weight() const { return output_weight_; }
  int64_t blocks() const { return text_.blocks(); }

 private:
  LlamaModel text_;
  at::Tensor output_weight_;  // [vocabulary, hidden]
};

}  // namespace vlmtrain::models
