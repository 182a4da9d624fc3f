#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "models/network/gemma/gemma_config.h"
#include "vlmtrain/nn/layers/linear.h"
#include "vlmtrain/nn/layers/norm.h"
#include "vlmtrain/nn/weights/parameters.h"

namespace vlmtrain::models {

/// Per-layer embeddings: each block reads features of each token from a table, added to a projection
/// of the token's embedding (Gemma 3n and Gemma 4; transformers' project_per_layer_inputs).
class GemmaPerLayerEmbedding {
 public:
  GemmaPerLayerEmbedding(const nn::ParameterScope& scope, const GemmaConfig& config);

  /// Returns the input of each block, [tokens, per-layer features]. `token_ids` int64 [tokens], with
  /// the padding token in place of media; `embeddings` [tokens, hidden], with the features of media.
  std::vector<at::Tensor> operator()(const at::Tensor& token_ids, const at::Tensor& embeddings) const;

 private:
  int64_t num_blocks_, features_, pad_token_id_;
  nn::PlacedTable table_;  // [vocabulary, blocks · features]
  nn::Linear projection_;
  nn::RmsNorm norm_;
};

}  // namespace vlmtrain::models
