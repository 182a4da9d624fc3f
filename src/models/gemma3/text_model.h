#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "models/gemma3/config.h"
#include "models/network/block_list.h"
#include "vlmtrain/data/micro_batch.h"
#include "vlmtrain/models/model_output.h"
#include "vlmtrain/nn/key_value_cache.h"
#include "vlmtrain/nn/linear.h"
#include "vlmtrain/nn/norm.h"
#include "vlmtrain/nn/parameters.h"
#include "vlmtrain/nn/rotary.h"
#include "vlmtrain/nn/span_attention.h"

namespace vlmtrain::models::gemma3 {

/// What all blocks of a kind share in a forward pass.
struct LayerTypeContext {
  nn::SpanAttention attention;
  std::optional<int64_t> window;
  nn::RotaryTable rotary;
};

struct BlockContext {
  std::shared_ptr<const LayerTypeContext> layer_type;
  nn::KeyValueCache* cache = nullptr;  ///< in generation
  int64_t block = 0;                   ///< which of the cache's
};

/// Norms before and after each of its two sublayers, and of each head's query and key.
class Block {
 public:
  Block(const nn::ParameterScope& scope, const TextConfig& config);
  /// [tokens, hidden] → [tokens, hidden]
  at::Tensor operator()(const at::Tensor& x, const BlockContext& context) const;

 private:
  /// The heads' values of [tokens, query | key | value], [tokens, heads · head_dim].
  at::Tensor attend(const at::Tensor& qkv, const BlockContext& context) const;

  nn::HeadShape heads_;
  nn::Linears qkv_;
  nn::Linear out_proj_;
  nn::QkNorm head_norms_;
  nn::Linears gate_up_proj_;
  nn::Linear down_proj_;
  nn::RmsNorm before_attention_, after_attention_, before_mlp_, after_mlp_;
};

/// Gemma 3's text model with its output projection.
class TextModel {
 public:
  /// `output`: the place of the projection's weight, where `is_tied` does not make the embedding it. `image_tokens`:
  /// how many tokens an image has, which see each other both ways.
  TextModel(const nn::ParameterScope& scope, const TextConfig& config, int64_t image_tokens, bool is_tied,
            const nn::ParameterScope& output);

  /// See VisionLanguageModel::hidden_states.
  ModelOutput operator()(const data::MicroBatch& batch, const ImageFeatures& image_features,
                         const OutputRequest& request, const TowerRecompute& recomputed_blocks,
                         nn::KeyValueCache* cache) const;

  const at::Tensor& output_weight() const { return output_weight_; }
  int64_t blocks() const { return blocks_.size(); }

 private:
  /// The batch's tokens [tokens, hidden], those of images replaced by `image_features`.
  at::Tensor embed(const data::MicroBatch& batch, const at::Tensor& image_features) const;
  std::shared_ptr<const LayerTypeContext> make_context(LayerType type, const data::MicroBatch& batch) const;

  TextConfig config_;
  int64_t image_tokens_;
  at::Tensor embedding_;                               // [vocabulary, hidden]
  at::Tensor full_frequencies_, sliding_frequencies_;  // [head_dim / 2]
  BlockList<Block> blocks_;
  nn::RmsNorm norm_;
  at::Tensor output_weight_;  // [vocabulary, hidden]
};

}  // namespace vlmtrain::models::gemma3
