#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace vlmtrain::nn {

/// The segments of a packed stream, a tensor `[rows, …]` of concatenated sequences. Rows attend
/// within their segment only. Segments are the samples of a micro-batch, or the tiles of the vision
/// tower. The lengths are on the host, so reading them never waits for the device.
struct Segments {
  std::vector<int64_t> lengths;  ///< rows of each segment, each > 0
  at::Tensor offsets;            ///< int32 [segments + 1] on the model's device: cumulative lengths from 0
  int64_t max_length = 0;        ///< rows of the longest segment
  int64_t rows = 0;              ///< sum of the lengths

  /// Returns segments of these lengths, with offsets on `device`. Throws InternalError for a length
  /// below 1.
  static Segments from_lengths(std::vector<int64_t> lengths, at::Device device);
  /// Returns `count` segments of `length` rows each.
  static Segments uniform(int64_t count, int64_t length, at::Device device);

  /// Returns whether all segments have the same length.
  bool is_uniform() const;
  /// Returns a copy with offsets on `device`.
  Segments to(at::Device device) const;
};

/// Computes scaled dot-product attention within each segment of a packed stream, with scale
/// 1/sqrt(head_dim).
///
/// `query` [rows, heads, head_dim]; `key` and `value` [rows, key_value_heads, head_dim], where
/// heads is a multiple of key_value_heads (grouped-query attention). Returns [rows, heads,
/// head_dim]. `is_causal`: a row attends to itself and the rows before it. `window`, with
/// `is_causal` only: a row attends to the last `window` rows including itself (Jiang et al. 2023,
/// arXiv 2310.06825). Throws InternalError if rows or heads do not match, or for a window without
/// `is_causal`. Throws UserError (kBadData) on CUDA if the rows of a head are not whole vectors of 16
/// bytes.
///
/// dtype and device determine the kernel, so a dry run measures its memory. On CUDA, bf16 and fp16
/// use variable-length flash attention; fp32, and fp16 below sm_80, use the memory-efficient
/// kernel. The CPU uses its flash kernel. Without CUDA's flash attention, a window shorter than a
/// segment uses plain products over blocks of `window` queries, with memory in proportion to rows ·
/// window · heads.
at::Tensor attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, const Segments& segments,
                     bool is_causal, std::optional<int64_t> window = std::nullopt);

/// The rows of a key or value cache that belong to each sequence: its slot.
struct CacheSlots {
  std::vector<int64_t> starts;   ///< first row of each sequence
  std::vector<int64_t> lengths;  ///< rows of each sequence, > 0
  int64_t max_length = 0;        ///< rows of the longest slot
  // int32 on the model's device, for the kernels.
  at::Tensor device_starts;   ///< [sequences + 1]; the kernels ignore the last entry
  at::Tensor device_lengths;  ///< [sequences]
  at::Tensor cu_seqlens_q;    ///< [sequences + 1]: 0, 1, 2 …

  /// Returns the slots with their copies on `device`. Throws InternalError unless there are as many
  /// starts as lengths, at least one.
  static CacheSlots from_starts_and_lengths(std::vector<int64_t> starts, std::vector<int64_t> lengths,
                                            at::Device device);
};

/// Computes attention of one query row per sequence, that of its newest token, to all rows of its
/// slot, with scale 1/sqrt(head_dim). Records no gradients.
///
/// `query` [sequences, heads, head_dim]; `key` and `value` [rows, key_value_heads, head_dim].
/// Returns [sequences, heads, head_dim]. Uses the kernels of attention(), which read the slots in
/// place.
at::Tensor decode_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                            const CacheSlots& slots);

/// Computes softmax(query · keyᵀ / sqrt(head_dim) + bias) · value for learned biases such as
/// relative positions.
///
/// `query` [batch, rows, heads, head_dim]; `key` and `value` [batch, keys, heads, head_dim]; `bias`
/// [batch or 1, heads, rows, keys] in the dtype of `query`. Returns [batch, rows, heads, head_dim].
/// On CUDA it uses the memory-efficient kernel, which saves the bias but no scores. On the CPU it
/// uses plain products, which save the weights [batch, heads, rows, keys].
at::Tensor biased_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                            const at::Tensor& bias);

/// Computes biased_attention() without a bias. Saves neither scores nor weights: uses the
/// memory-efficient kernel on CUDA, the flash kernel on the CPU.
at::Tensor batched_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value);

}  // namespace vlmtrain::nn
