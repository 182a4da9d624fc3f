#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "nn/mixers/delta_rule.h"
#include "vlmtrain/nn/mixers/chunk_layout.h"
#include "vlmtrain/nn/mixers/gated_delta_net.h"

namespace vlmtrain::nn {

/// What a gated delta net computes the inputs of the delta rule from, or the gradients of it.
/// Projections have the dtype of the model.
struct DeltaProjections {
  at::Tensor qkv;   ///< [rows, query | key | value], before the convolution
  at::Tensor beta;  ///< [rows, value_heads]: β = sigmoid(beta)
  at::Tensor step;  ///< [rows, value_heads]: log α = −exp(a_log) · softplus(step + step_bias)
  // Parameters.
  at::Tensor convolution;  ///< [query | key | value, 1, kernel_size]
  at::Tensor a_log;        ///< [value_heads]
  at::Tensor step_bias;    ///< [value_heads]
};

/// The gradients that a backward pass needs.
struct DeltaGradientNeeds {
  bool convolution, gates;  ///< the convolution's weight; a_log and step_bias
};

/// The inputs of the delta rule for the chunks of a forward pass, in fp32 (fp64 for fp64): causal
/// convolution with SiLU, L2 norms of query and key, and gates. Holds the intermediate results for
/// backward().
class ChunkedDeltaInputs {
 public:
  ChunkedDeltaInputs(const DeltaProjections& projections, const GatedDeltaShape& shape, const ChunkLayout& layout);

  const DeltaRuleInputs& inputs() const { return inputs_; }

  /// Returns the gradients of the projections and of the requested parameters, given those of
  /// inputs(). Frees the intermediate results.
  DeltaProjections backward(DeltaRuleInputs gradients, const DeltaGradientNeeds& needs) &&;

 private:
  /// Returns the gradient of the rows before the convolution, [chunks, history + kChunkRows,
  /// channels], and that of its weight if requested.
  at::Tensor convolution_backward(const at::Tensor& gradient, at::Tensor* dweight) const;

  DeltaProjections projections_;
  GatedDeltaShape shape_;
  const ChunkLayout* layout_;
  at::Tensor weight_;                   // [kernel_size, channels]
  at::Tensor rows_;                     // [chunks, history + kChunkRows, channels]
  at::Tensor convolved_;                // [chunks, kChunkRows, channels], before SiLU
  at::Tensor query_rnorm_, key_rnorm_;  // 1 / norms, [chunks, key_heads, kChunkRows, 1]
  DeltaRuleInputs inputs_;
};

/// Returns the inputs of delta_rule_step() for one new row per sequence, and appends the rows of
/// projections.qkv to `history` [sequences, kernel_size − 1, channels], from which it drops the
/// oldest.
DeltaRuleInputs make_step_inputs(const DeltaProjections& projections, const GatedDeltaShape& shape,
                                 const at::Tensor& history);

}  // namespace vlmtrain::nn
