#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "models/network/gemma/gemma_config.h"
#include "vlmtrain/nn/attention/span_attention.h"
#include "vlmtrain/nn/generation_cache.h"
#include "vlmtrain/nn/layers/linear.h"
#include "vlmtrain/nn/layers/norm.h"
#include "vlmtrain/nn/layers/position_embedding.h"
#include "vlmtrain/nn/weights/parameters.h"

namespace vlmtrain::models {

/// Inputs that all blocks of one layer type share in a forward pass.
struct GemmaLayerTypeContext {
  nn::SpanAttention attention;
  std::optional<int64_t> window;  ///< as GemmaAttentionConfig::window
  nn::RotaryTable rotary_table;
};

/// Inputs of one block in a forward pass that have no gradients.
struct GemmaBlockContext {
  std::shared_ptr<const GemmaLayerTypeContext> layer_type_context;
  nn::GenerationCache* cache = nullptr;  ///< null except in generation
  int64_t block = 0;                     ///< index of the block
  int64_t key_value_block = 0;           ///< index of the block whose keys and values it reads
};

/// The configuration of one block.
struct GemmaBlockConfig {
  GemmaBlockConfig(const GemmaConfig& model_config, int64_t block);

  const GemmaConfig& model;
  const GemmaAttentionConfig& attention;
  int64_t intermediate_size;
  bool reads_shared_key_value;  ///< keys and values are those of an earlier block
  bool shares_key_value;        ///< later blocks read its keys and values
};

/// The part of a block that reads its per-layer input: x + norm(projection(gelu(gate(x)) · input)).
class GemmaPerLayerGate {
 public:
  GemmaPerLayerGate(const nn::ParameterScope& scope, const GemmaConfig& config);
  /// Maps x [tokens, hidden] → [tokens, hidden]; per_layer_input [tokens, per-layer features].
  at::Tensor operator()(const at::Tensor& x, const at::Tensor& per_layer_input) const;

 private:
  nn::Linear gate_, projection_;
  nn::RmsNorm norm_;
};

/// A decoder block with QK-norm and with norms before and after attention and MLP. It may read a
/// per-layer input, and the keys and values of an earlier block instead of its own.
class GemmaBlock {
 public:
  GemmaBlock(const nn::ParameterScope& scope, const GemmaBlockConfig& config);

  /// Maps [hidden states, per-layer input, keys, values] → [hidden states, keys, values]. Hidden
  /// states are [tokens, hidden], keys and values [tokens, key_value_heads, head_dim]. The per-layer
  /// input is left out if the model has none, the keys and values unless the block reads those of
  /// another block or others read its own.
  std::vector<at::Tensor> operator()(const std::vector<at::Tensor>& inputs, const GemmaBlockContext& context) const;

 private:
  /// The result of attend().
  struct AttentionResult {
    at::Tensor output;                       ///< [tokens, heads · head_dim]
    std::vector<at::Tensor> key_value = {};  ///< keys and values, if other blocks read them
  };

  /// Returns the queries, keys and values of x [tokens, query | key | value], or of the queries alone
  /// if keys and values are those of another block, the last two of `inputs`.
  nn::QueryKeyValue make_heads(const at::Tensor& x, const std::vector<at::Tensor>& inputs,
                               const nn::RotaryTable& rotary_table) const;
  AttentionResult attend(const at::Tensor& x, const std::vector<at::Tensor>& inputs,
                         const GemmaBlockContext& context) const;

  nn::HeadShape head_shape_;
  bool reads_shared_key_value_, shares_key_value_;
  std::optional<double> value_norm_eps_;  // nothing: values are not normalized
  nn::MergedLinear qkv_;
  nn::Linear out_proj_;
  std::optional<nn::QkNorm> qk_norm_;  // one of the two exists
  std::optional<nn::QueryNorm> query_norm_;
  nn::MergedLinear gate_up_proj_;
  nn::Linear down_proj_;
  nn::RmsNorm before_attention_, after_attention_, before_mlp_, after_mlp_;
  std::optional<GemmaPerLayerGate> per_layer_gate_;
  at::Tensor layer_scalar_;  // [1]; undefined: 1
};

}  // namespace vlmtrain::models
