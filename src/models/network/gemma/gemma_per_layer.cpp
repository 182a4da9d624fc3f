#include "models/network/gemma/gemma_per_layer.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/embedding.h>

#include <cmath>

namespace vlmtrain::models {

GemmaPerLayerEmbedding::GemmaPerLayerEmbedding(const nn::ParameterScope& scope, const GemmaConfig& config)
    : num_blocks_(config.num_layers()),
      features_(config.per_layer.features),
      pad_token_id_(config.pad_token_id),
      table_((scope / "embed_tokens_per_layer")
                 .add_per_layer_table("weight", {config.per_layer.vocab_size, num_blocks_ * features_},
                                      nn::InitialValues::kaiming(features_))),
      projection_(scope / "per_layer_model_projection", config.hidden_size, num_blocks_ * features_, /*bias=*/false),
      // transformers multiplies the projection by 1/√hidden before the norm. That is the norm of the
      // projection itself with an eps larger by the factor `hidden`.
      norm_(scope / "per_layer_projection_norm", features_,
            config.rms_norm_eps * static_cast<double>(config.hidden_size), config.norm_gain) {}

std::vector<at::Tensor> GemmaPerLayerEmbedding::operator()(const at::Tensor& token_ids,
                                                           const at::Tensor& embeddings) const {
  at::Tensor inputs = norm_(projection_(embeddings).view({-1, features_}));
  // The row of the padding token gets no gradient, as in transformers.
  const at::Tensor table_features = at::embedding(table_.device_view, token_ids, /*padding_idx=*/pad_token_id_)
                                        .mul_(std::sqrt(static_cast<double>(features_)))
                                        .view({-1, features_});
  inputs = (inputs + table_features).mul_(1 / std::sqrt(2.0));
  return inputs.view({-1, num_blocks_, features_}).unbind(1);
}

}  // namespace vlmtrain::models
