#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "vlmtrain/nn/segments.h"

namespace vlmtrain::nn {

/// Scaled dot-product attention within each segment of a packed stream, with scale 1/sqrt(head_dim).
///
/// `query` [rows, heads, head_dim], `key` and `value` [rows, key_value_heads, head_dim] with heads a multiple of
/// key_value_heads (grouped queries); result [rows, heads, head_dim]. `causal`: a row sees only rows up to itself.
/// The kernel is pinned, never chosen by PyTorch: variable-length flash attention for bf16/fp16 on CUDA, the
/// memory-efficient kernel for fp32 there and for fp16 on cards older than sm_80, the flash kernel on the CPU.
///
/// `window`, with `causal` only: a row sees the last `window` rows up to itself (sliding window; Jiang et al. 2023,
/// arXiv 2310.06825). The flash kernel on CUDA knows windows. Elsewhere a batch with a segment longer than the window
/// goes through plain products over blocks of `window` queries, whose memory grows with rows · window · heads.
at::Tensor attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, const Segments& segments,
                     bool causal, std::optional<int64_t> window = std::nullopt);

/// Where the keys of some sequences lie among the rows of a tensor that holds more.
struct CacheSlots {
  std::vector<int64_t> starts;   ///< first row of each sequence
  std::vector<int64_t> lengths;  ///< its rows, each > 0
  int64_t max_length = 0;
  // int32 on the model's device, for the kernels.
  at::Tensor device_starts;   ///< [sequences + 1]; the last entry is not read
  at::Tensor device_lengths;  ///< [sequences]
  at::Tensor cu_seqlens_q;    ///< [sequences + 1]: 0, 1, 2 …

  static CacheSlots make(std::vector<int64_t> starts, std::vector<int64_t> lengths, at::Device device);
};

/// Attention of one row a sequence, its newest, to all rows of its slot.
///
/// `query` [sequences, heads, head_dim]; `key` and `value` [rows, key_value_heads, head_dim]; result
/// [sequences, heads, head_dim]. The kernels are those of attention(), which read the slots where they lie. Not for
/// training.
at::Tensor decode_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                            const CacheSlots& slots);

}  // namespace vlmtrain::nn
