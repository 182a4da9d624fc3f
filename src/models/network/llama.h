#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/network/block_list.h"
#include "models/network/config.h"
#include "vlmtrain/data/sample/sample.h"
#include "vlmtrain/models/model.h"
#include "vlmtrain/nn/attention/attention.h"
#include "vlmtrain/nn/attention/key_value_cache.h"
#include "vlmtrain/nn/layers/linear.h"
#include "vlmtrain/nn/layers/norm.h"
#include "vlmtrain/nn/layers/position_embedding.h"
#include "vlmtrain/nn/weights/parameters.h"

namespace vlmtrain::models {

/// The inputs that all blocks of a forward pass share.
struct LlamaForwardContext {
  nn::Segments samples;                   ///< of the packed batch; a token attends to its own sample only
  nn::RotaryTable rotary_table;           ///< cosine and sine of each token
  std::optional<int64_t> sliding_window;  ///< as in LlamaConfig
  nn::KeyValueCache* cache = nullptr;     ///< null except in generation
  int64_t block = 0;                      ///< index of the block in the cache
};

/// A decoder block: attention and gated MLP, each with a preceding RMS norm and a residual.
class LlamaBlock {
 public:
  LlamaBlock(const nn::ParameterScope& scope, const LlamaConfig& config);
  /// Maps x [tokens, hidden] → [tokens, hidden]
  at::Tensor operator()(const at::Tensor& x, const LlamaForwardContext& context) const;

 private:
  /// Returns the outputs of the heads, [tokens, heads · head_dim]. `qkv` is [tokens, (heads + 2 ·
  /// key-value heads) · head_dim]: query, key and value heads in this order.
  at::Tensor attend(const at::Tensor& qkv, const LlamaForwardContext& context) const;

  nn::HeadShape head_shape_;
  nn::MergedLinear qkv_;
  nn::Linear out_proj_;
  nn::MergedLinear gate_up_proj_;
  nn::Linear down_proj_;
  nn::RmsNorm input_layernorm_, post_attention_layernorm_;
  std::optional<nn::QkNorm> qk_norm_;
};

/// The Llama decoder without output projection: embedding, blocks and final norm.
class LlamaModel {
 public:
  LlamaModel(const nn::ParameterScope& scope, const LlamaConfig& config);

  /// Implements VisionLanguageModel::compute_hidden_states(). `batch.position_ids` may have several
  /// axes only if config.rope has sections.
  ModelOutput operator()(const data::MicroBatch& batch, const ImageFeatures& image_features,
                         const OutputRequest& request, const TowerRecomputeCounts& recomputed_blocks,
                         nn::KeyValueCache* cache) const;

  const at::Tensor& embedding_weight() const { return embedding_; }
  int64_t num_blocks() const { return blocks_.size(); }

 private:
  /// Returns the batch's embeddings [tokens, hidden], with `image_features` [image tokens, hidden]
  /// in the rows of image tokens.
  at::Tensor embed(const data::MicroBatch& batch, const at::Tensor& image_features) const;
  nn::RotaryTable make_rotary_table(const at::Tensor& position_ids) const;

  LlamaConfig config_;
  at::Tensor embedding_;           // [vocabulary, hidden]
  at::Tensor rotary_frequencies_;  // [head_dim / 2]
  at::Tensor rotary_axes_;         // int64 [head_dim / 2]; empty: one position per token
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
                                    nn::KeyValueCache* cache) const {
    return text_(batch, image_features, request, recomputed_blocks, cache);
  }

  const at::Tensor& output_weight() const { return output_weight_; }
  int64_t num_blocks() const { return text_.num_blocks(); }

 private:
  LlamaModel text_;
  at::Tensor output_weight_;  // [vocabulary, hidden]
};

}  // namespace vlmtrain::models
