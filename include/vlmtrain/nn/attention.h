#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "vlmtrain/nn/segments.h"

namespace vlmtrain::nn {

/// Scaled dot-product attention within each segment of a packed stream, with scale 1/sqrt(head_dim).
///
/// `query` [rows, heads, head_dim], `key` and `value` [rows, key_value_heads, head_dim] with heads a multiple of
/// key_value_heads (grouped queries); result [rows, heads, head_dim]. `causal`: a row sees only rows up to itself.
/// The kernel is pinned, never chosen by PyTorch: variable-length flash attention for bf16/fp16 on CUDA, the
/// memory-efficient kernel for fp32 there, the flash kernel on the CPU.
///
/// `window`, with `causal` only: a row sees the last `window` rows up to itself (sliding window; Jiang et al. 2023,
/// arXiv 2310.06825). The flash kernel on CUDA knows windows. Elsewhere a batch with a segment longer than the window
/// goes through plain products over blocks of `window` queries, whose memory grows with rows · window · heads.
at::Tensor attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, const Segments& segments,
                     bool causal, std::optional<int64_t> window = std::nullopt);

}  // namespace vlmtrain::nn
