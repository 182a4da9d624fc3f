#pragma once

#include <ATen/core/Tensor.h>
#include <nlohmann/json.hpp>

#include <cstdint>
#include <string>

#include "models/block_list.h"
#include "vlmtrain/nn/linear.h"
#include "vlmtrain/nn/norm.h"
#include "vlmtrain/nn/parameters.h"
#include "vlmtrain/nn/rotary.h"
#include "vlmtrain/nn/segments.h"

namespace vlmtrain::models {

/// The Llama decoder (Touvron et al. 2023, arXiv 2302.13971) with grouped queries, as transformers' LlamaConfig has it.
struct LlamaConfig {
  int64_t vocab_size = 32000;
  int64_t hidden_size = 4096;
  int64_t intermediate_size = 11008;
  int64_t layers = 32;
  int64_t heads = 32;
  int64_t key_value_heads = 32;
  int64_t head_dim = 128;
  double rms_norm_eps = 1e-6;
  double rope_theta = 10000.0;
  bool attention_bias = false;
  bool mlp_bias = false;

  /// The defaults are transformers'; `rope_theta` may stand by itself (transformers 4) or in `rope_parameters`
  /// (transformers 5). Rope scaling is refused. `source` names the file in errors.
  static LlamaConfig from_json(const nlohmann::json& config, const std::string& source);
};

/// What every block of a forward pass shares.
struct LlamaContext {
  nn::Segments samples;
  nn::RotaryTable rotary;
};

class LlamaBlock {
 public:
  LlamaBlock(const nn::ParameterScope& scope, const LlamaConfig& config);
  /// [tokens, hidden] → [tokens, hidden]
  at::Tensor operator()(const at::Tensor& x, const LlamaContext& context) const;

 private:
  at::Tensor attend(const at::Tensor& x, const LlamaContext& context) const;
  at::Tensor feed_forward(const at::Tensor& x) const;

  int64_t head_dim_;
  nn::Linear query_, key_, value_, out_;
  nn::Linear gate_, up_, down_;
  nn::RmsNorm input_norm_, post_attention_norm_;
};

class LlamaModel {
 public:
  LlamaModel(const nn::ParameterScope& scope, const LlamaConfig& config);

  /// int64 [tokens] → [tokens, hidden]
  at::Tensor embed(const at::Tensor& token_ids) const;
  /// Embedded tokens [tokens, hidden] → hidden states after the final norm of the rows `output_positions`.
  at::Tensor operator()(const at::Tensor& embedded, const at::Tensor& position_ids, const nn::Segments& samples,
                        const at::Tensor& output_positions, int64_t recomputed_blocks) const;

  const at::Tensor& embedding_weight() const { return embedding_; }
  int64_t blocks() const { return blocks_.size(); }

 private:
  LlamaConfig config_;
  at::Tensor embedding_;  // [vocabulary, hidden]
  BlockList<LlamaBlock> blocks_;
  nn::RmsNorm norm_;
};

}  // namespace vlmtrain::models
