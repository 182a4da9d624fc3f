#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

namespace vlmtrain::nn {

/// The inputs of the gated delta rule in chunks of a ChunkLayout, or their gradients. All have one
/// dtype, fp32 or fp64. `value_heads` is a multiple of `key_heads`; key head i serves the value
/// heads [i · ratio, (i + 1) · ratio). In padding rows, log_decay and beta are 0.
struct DeltaRuleInputs {
  at::Tensor query{}, key{};  ///< [chunks, key_heads, kChunkRows, key_dim]; the query with its scale
  at::Tensor value{};         ///< [chunks, value_heads, kChunkRows, value_dim]
  at::Tensor log_decay{};     ///< [chunks, value_heads, kChunkRows]; log α ≤ 0
  at::Tensor beta{};          ///< [chunks, value_heads, kChunkRows]; β in [0, 1]
};

/// The result of delta_rule().
struct DeltaRuleOutput {
  at::Tensor value;   ///< [chunks, value_heads, kChunkRows, value_dim]
  at::Tensor states;  ///< [segments in sorted order, value_heads, key_dim, value_dim]: the states after the last rows;
                      ///< undefined unless requested
};

/// Computes the gated delta rule (Yang, Kautz and Hatamizadeh 2024, arXiv 2412.06464), from state 0
/// in each segment: S ← α S, S ← S + k (β (v − kᵀ S)), output qᵀ S. Within a chunk it solves for all
/// corrections at once (Yang et al. 2024, arXiv 2406.06484, section 3), and a scan over the steps
/// carries the states. A segment's result does not depend on other segments. `chunks_per_step` is
/// that of the ChunkLayout. Records no gradients.
DeltaRuleOutput delta_rule(const DeltaRuleInputs& inputs, std::span<const int64_t> chunks_per_step, bool with_states);

/// Returns the gradients of delta_rule()'s inputs, given `gradient`, that of DeltaRuleOutput::value,
/// which must be 0 in padding rows. Recomputes all intermediate results. Gradients of padding rows
/// are 0, except those of log_decay and beta, which are arbitrary.
DeltaRuleInputs delta_rule_backward(const DeltaRuleInputs& inputs, std::span<const int64_t> chunks_per_step,
                                    const at::Tensor& gradient);

/// Updates `state` [sequences, value_heads, key_dim, value_dim] in place with one row per sequence
/// and returns the output [sequences, value_heads, value_dim]. `inputs` have shapes without chunk
/// rows: query and key [sequences, key_heads, key_dim], value [sequences, value_heads, value_dim],
/// log_decay and beta [sequences, value_heads]. Records no gradients.
at::Tensor delta_rule_step(const DeltaRuleInputs& inputs, const at::Tensor& state);

}  // namespace vlmtrain::nn
