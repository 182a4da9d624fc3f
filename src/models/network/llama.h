#pragma once

#include <ATen/core/Tensor.h>
#include <nlohmann/json.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/network/block_list.h"
#include "models/network/rope.h"
#include "vlmtrain/data/sample/micro_batch.h"
#include "vlmtrain/models/model.h"
#include "vlmtrain/nn/attention/attention.h"
#include "vlmtrain/nn/attention/key_value_cache.h"
#include "vlmtrain/nn/layers/linear.h"
#include "vlmtrain/nn/layers/norm.h"
#include "vlmtrain/nn/layers/position_embedding.h"
#include "vlmtrain/nn/weights/parameters.h"

namespace vlmtrain::models {

/// The supported `model_type` of a text model.
enum class TextModelType { kLlama, kMistral, kQwen2, kQwen3, kSmolLm3 };

/// The module names in a checkpoint; the defaults are transformers'.
struct LlamaModuleNames {
  std::string_view embedding = "embed_tokens";
  std::string_view blocks = "layers";
  std::string_view attention = "self_attn", attention_output = "o_proj";
  std::string_view input_norm = "input_layernorm", post_attention_norm = "post_attention_layernorm";
};

/// The configuration of a Llama decoder (Touvron et al. 2023, arXiv 2302.13971) with grouped-query
/// attention, or of one of its variants: Mistral (Jiang et al. 2023, arXiv 2310.06825) has a
/// sliding window. Qwen2 (Yang et al. 2024, arXiv 2407.10671) has biases of query, key and value.
/// Qwen3 (Yang et al. 2025, arXiv 2505.09388) has QK-norm. SmolLM3 (Bakouch et al. 2025,
/// https://huggingface.co/blog/smollm3) has blocks without RoPE (NoPE, arXiv 2501.18795).
struct LlamaConfig {
  TextModelType type = TextModelType::kLlama;
  int64_t vocab_size = 32000;
  int64_t max_positions = 2048;
  int64_t hidden_size = 4096;
  int64_t intermediate_size = 11008;
  int64_t num_layers = 32;
  int64_t num_heads = 32;
  int64_t num_key_value_heads = 32;
  int64_t head_dim = 128;
  double rms_norm_eps = 1e-6;
  RopeConfig rope = {};
  std::vector<bool> uses_rope = {};                      ///< of each block; empty: all blocks do
  std::optional<int64_t> sliding_window = std::nullopt;  ///< tokens that a token attends to, itself included
  bool qk_norm = false;
  bool qkv_bias = false;
  bool attention_output_bias = false;
  bool mlp_bias = false;
  bool tie_word_embeddings = false;
  LlamaModuleNames names = {};

  /// Reads a config with `model_type` llama (the default), mistral, qwen2, qwen3 or smollm3, with
  /// transformers' defaults of that type. `source` names the file in errors.
  static LlamaConfig from_json(const nlohmann::json& config, const std::string& source);

  /// Returns whether some blocks have no RoPE.
  bool has_blocks_without_rope() const;
  /// Estimates the number of parameters. Counts matrices only, and the output projection even if it
  /// is tied.
  double num_parameters() const;
};

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
