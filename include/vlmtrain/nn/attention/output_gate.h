#pragma once

#include <ATen/core/Tensor.h>

#include "vlmtrain/nn/layers/linear.h"
#include "vlmtrain/nn/layers/position_embedding.h"

namespace vlmtrain::nn {

/// The parts of a projection with output gates.
struct GatedQkv {
  at::Tensor qkv;   ///< [rows, query | key | value]
  at::Tensor gate;  ///< [rows, num_heads · head_dim]
};

/// Splits x [rows, (query and gate of head 0) | (query and gate of head 1) … | key | value], as in
/// Qwen3-Next (Qwen Team 2025; transformers' Qwen3NextAttention). Records gradients.
GatedQkv split_output_gate(const at::Tensor& x, const HeadShape& heads);

/// Returns x · sigmoid(gate), both [rows, features], as input of Linears. Saves x and gate, not the
/// result.
LinearInput apply_output_gate(const at::Tensor& x, const at::Tensor& gate);

}  // namespace vlmtrain::nn
