#pragma once

#include <ATen/core/Tensor.h>
#include <nlohmann/json.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "models/network/block_list.h"
#include "models/network/rope.h"
#include "vlmtrain/data/micro_batch.h"
#include "vlmtrain/models/model.h"
#include "vlmtrain/nn/key_value_cache.h"
#include "vlmtrain/nn/linear.h"
#include "vlmtrain/nn/norm.h"
#include "vlmtrain/nn/parameters.h"
#include "vlmtrain/nn/rotary.h"
#include "vlmtrain/nn/segments.h"

namespace vlmtrain::models {

enum class LlamaType { kLlama, kMistral, kQwen2, kQwen3 };

/// What a checkpoint calls the modules; the defaults are transformers' names.
struct LlamaNames {
  std::string_view embedding = "embed_tokens";
  std::string_view blocks = "layers";
  std::string_view attention = "self_attn", attention_output = "o_proj";
  std::string_view input_norm = "input_layernorm", post_attention_norm = "post_attention_layernorm";
};

/// The Llama decoder (Touvron et al. 2023, arXiv 2302.13971) with grouped queries, and what is it but for details:
/// Mistral (Jiang et al. 2023, arXiv 2310.06825) has a sliding window, Qwen2 (Yang et al. 2024, arXiv 2407.10671)
/// biases of query, key and value, Qwen3 (Yang et al. 2025, arXiv 2505.09388) norms of each head's query and key.
struct LlamaConfig {
  LlamaType type = LlamaType::kLlama;
  int64_t vocab_size = 32000;
  int64_t max_positions = 2048;
  int64_t hidden_size = 4096;
  int64_t intermediate_size = 11008;
  int64_t layers = 32;
  int64_t heads = 32;
  int64_t key_value_heads = 32;
  int64_t head_dim = 128;
  double rms_norm_eps = 1e-6;
  RopeConfig rope = {};
  std::optional<int64_t> sliding_window = std::nullopt;  ///< rows that a row sees, itself included
  bool qk_norm = false;
  bool qkv_bias = false;
  bool attention_output_bias = false;
  bool mlp_bias = false;
  bool tie_word_embeddings = false;
  LlamaNames names = {};

  /// Reads a config whose `model_type` is llama (also where there is none), mistral, qwen2 or qwen3; the defaults are
  /// transformers' for that type. `source` names the file in errors.
  static LlamaConfig from_json(const nlohmann::json& config, const std::string& source);

  /// About how many parameters it has: those of the matrices, the output projection counted even where it is tied.
  double num_parameters() const;
};

/// What every block of a forward pass shares.
struct LlamaContext {
  nn::Segments samples;
  nn::RotaryTable rotary;
  std::optional<int64_t> sliding_window;
  nn::KeyValueCache* cache = nullptr;  ///< in generation
  int64_t block = 0;                   ///< which of the cache's
};

class LlamaBlock {
 public:
  LlamaBlock(const nn::ParameterScope& scope, const LlamaConfig& config);
  /// [tokens, hidden] → [tokens, hidden]
  at::Tensor operator()(const at::Tensor& x, const LlamaContext& context) const;

 private:
  /// The heads' values of [tokens, query | key | value], [tokens, heads · head_dim].
  at::Tensor attend(const at::Tensor& qkv, const LlamaContext& context) const;

  nn::HeadShape heads_;
  nn::Linears qkv_;
  nn::Linear out_proj_;
  nn::Linears gate_up_proj_;
  nn::Linear down_proj_;
  nn::RmsNorm input_layernorm_, post_attention_layernorm_;
  std::optional<nn::QkNorm> head_norms_;
};

class LlamaModel {
 public:
  LlamaModel(const nn::ParameterScope& scope, const LlamaConfig& config);

  /// See VisionLanguageModel::hidden_states. `batch.position_ids` have axes only where config.rope has sections.
  ModelOutput operator()(const data::MicroBatch& batch, const ImageFeatures& image_features,
                         const OutputRequest& request, const TowerRecompute& recomputed_blocks,
                         nn::KeyValueCache* cache) const;

  const at::Tensor& embedding_weight() const { return embedding_; }
  int64_t blocks() const { return blocks_.size(); }

 private:
  /// The batch's tokens [tokens, hidden], those of images replaced by `image_features`.
  at::Tensor embed(const data::MicroBatch& batch, const at::Tensor& image_features) const;
  nn::RotaryTable make_rotary_table(const at::Tensor& position_ids) const;

  LlamaConfig config_;
  at::Tensor embedding_;           // [vocabulary, hidden]
  at::Tensor rotary_frequencies_;  // [head_dim / 2]
  at::Tensor rotary_axes_;         // int64 [head_dim / 2]; empty: one position a token
  BlockList<LlamaBlock> blocks_;
  nn::RmsNorm norm_;
};

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
