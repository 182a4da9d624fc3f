#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "models/network/block_list.h"
#include "models/network/config.h"
#include "models/network/mixers/sequence_mixer.h"
#include "vlmtrain/data/sample/sample.h"
#include "vlmtrain/models/model.h"
#include "vlmtrain/nn/generation_cache.h"
#include "vlmtrain/nn/layers/linear.h"
#include "vlmtrain/nn/layers/norm.h"
#include "vlmtrain/nn/layers/position_embedding.h"
#include "vlmtrain/nn/weights/parameters.h"

namespace vlmtrain::models {

/// The configuration of one block.
struct LlamaBlockConfig {
  const LlamaConfig& model;
  MixerType mixer;
};

/// A decoder block: a sequence mixer and a gated MLP, each with a preceding RMS norm and a residual.
class LlamaBlock {
 public:
  LlamaBlock(const nn::ParameterScope& scope, const LlamaBlockConfig& config);
  /// Maps x [tokens, hidden] → [tokens, hidden]
  at::Tensor operator()(const at::Tensor& x, const MixerContext& context) const;

 private:
  std::unique_ptr<const SequenceMixer> mixer_;
  nn::MergedLinear gate_up_proj_;
  nn::Linear down_proj_;
  nn::RmsNorm input_layernorm_, post_attention_layernorm_;
};

/// The Llama decoder without output projection: embedding, blocks and final norm.
class LlamaModel {
 public:
  LlamaModel(const nn::ParameterScope& scope, const LlamaConfig& config);

  /// Implements VisionLanguageModel::compute_hidden_states(). `batch.position_ids` may have several
  /// axes only if config.rope has sections.
  ModelOutput operator()(const data::MicroBatch& batch, const ImageFeatures& image_features,
                         const OutputRequest& request, const TowerRecomputeCounts& recomputed_blocks,
                         nn::GenerationCache* cache) const;

  const at::Tensor& embedding_weight() const { return embedding_; }
  int64_t num_blocks() const { return blocks_.size(); }

 private:
  /// Returns the batch's embeddings [tokens, hidden], with `image_features` [image tokens, hidden]
  /// in the rows of image tokens.
  at::Tensor embed(const data::MicroBatch& batch, const at::Tensor& image_features) const;
  nn::RotaryTable make_rotary_table(const at::Tensor& position_ids) const;
  /// Returns the inputs of all blocks of a forward pass.
  MixerContext make_context(const data::MicroBatch& batch, nn::GenerationCache* cache) const;

  LlamaConfig config_;
  at::Tensor embedding_;           // [vocabulary, hidden]
  at::Tensor rotary_frequencies_;  // [rotary_dim / 2]
  at::Tensor rotary_axes_;         // int64 [rotary_dim / 2]; empty: one position per token
  BlockList<LlamaBlock> blocks_;
  nn::RmsNorm norm_;
};

/// A Llama text model with its output projection: the language side of a vision-language model.
class CausalLlama {
 public:
  /// Builds the text model. `output` is the scope of the output projection; unused if
  /// config.tie_word_embeddings.
  CausalLlama(const nn::ParameterScope& scope, const LlamaConfig& config, const nn::ParameterScope& output);

  /// Implements VisionLanguageModel::compute_hidden_states().
  ModelOutput compute_hidden_states(const data::MicroBatch& batch, const ImageFeatures& image_features,
                                    const OutputRequest& request, const TowerRecomputeCounts& recomputed_blocks,
                                    nn::GenerationCache* cache) const {
    return text_(batch, image_features, request, recomputed_blocks, cache);
  }

  nn::OutputProjection output_projection() const { return {.weight = output_weight_}; }
  int64_t num_blocks() const { return text_.num_blocks(); }

 private:
  LlamaModel text_;
  at::Tensor output_weight_;  // [vocabulary, hidden]
};

}  // namespace vlmtrain::models
