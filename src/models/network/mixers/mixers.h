#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "models/network/config.h"
#include "models/network/mixers/sequence_mixer.h"
#include "vlmtrain/nn/layers/linear.h"
#include "vlmtrain/nn/layers/position_embedding.h"
#include "vlmtrain/nn/mixers/gated_delta_net.h"
#include "vlmtrain/nn/weights/parameters.h"

namespace vlmtrain::models {

/// Causal attention with grouped queries and RoPE.
class AttentionMixer final : public SequenceMixer {
 public:
  /// Adds the parameters under `scope`, that of the attention module.
  AttentionMixer(const nn::ParameterScope& scope, const LlamaConfig& config);

  at::Tensor operator()(const nn::LinearInput& x, const MixerContext& context) const override;

 private:
  /// Returns the outputs of the heads, [tokens, heads · head_dim]. `qkv` is [tokens, (heads + 2 ·
  /// key-value heads) · head_dim]: query, key and value heads in this order.
  at::Tensor attend(const at::Tensor& qkv, const MixerContext& context) const;

  nn::HeadShape head_shape_;
  bool has_output_gate_;
  nn::MergedLinear qkv_;
  nn::Linear out_proj_;
  std::optional<nn::QkNorm> qk_norm_;
};

/// A gated delta net with its output projection.
class DeltaNetMixer final : public SequenceMixer {
 public:
  /// Adds the parameters under `scope`, that of the module.
  DeltaNetMixer(const nn::ParameterScope& scope, const LlamaConfig& config);

  at::Tensor operator()(const nn::LinearInput& x, const MixerContext& context) const override;

 private:
  nn::GatedDeltaNet::Output mix(const nn::LinearInput& x, const MixerContext& context) const;

  nn::GatedDeltaNet delta_net_;
  nn::Linear out_proj_;
};

}  // namespace vlmtrain::models
