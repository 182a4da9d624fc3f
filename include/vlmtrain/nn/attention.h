#pragma once

#include <ATen/core/Tensor.h>

#include "vlmtrain/nn/segments.h"

namespace vlmtrain::nn {

/// Scaled dot-product attention within each segment of a packed stream, with scale 1/sqrt(head_dim).
///
/// `query` [rows, heads, head_dim], `key` and `value` [rows, key_value_heads, head_dim] with heads a multiple of
/// key_value_heads (grouped queries); result [rows, heads, head_dim]. `causal`: a row sees only rows up to itself.
/// The kernel is pinned, never chosen by PyTorch: variable-length flash attention for bf16/fp16 on CUDA, the
/// memory-efficient kernel for fp32 there, the flash kernel on the CPU.
at::Tensor attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, const Segments& segments,
                     bool causal);

}  // namespace vlmtrain::nn
