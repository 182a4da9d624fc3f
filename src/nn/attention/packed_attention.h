#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "nn/attention/attention_kernel.h"
#include "vlmtrain/nn/attention/attention.h"

namespace vlmtrain::nn {

/// The place of each row's log-sum-exp in the memory-efficient kernel's tensor [segments, heads,
/// padded rows], where the rows of each segment are padded to those of the longest.
class PaddedLogSumExp {
 public:
  explicit PaddedLogSumExp(const Segments& segments);

  /// Maps [segments, heads, padded rows] → [heads, rows].
  at::Tensor pack(const at::Tensor& padded) const;
  /// Maps [heads, rows] → [segments, heads, padded rows]. The log-sum-exps of the padding are ∞, so
  /// that its probabilities are 0.
  at::Tensor pad(const at::Tensor& packed) const;

  /// Returns the number of padded rows.
  int64_t padded_rows() const { return padded_rows_; }

 private:
  int64_t num_segments_, padded_rows_;
  at::Tensor flat_rows_;  // int64 [rows]: segment · padded rows + row within the segment
};

/// Returns the causal memory-efficient kernel for make_combined_kernel(): query [rows, heads,
/// head_dim], key and value [rows, key_value_heads, head_dim], log-sum-exps [heads, rows].
std::shared_ptr<const AttentionKernel> make_cuda_packed_memory_efficient_kernel(const Segments& segments);

}  // namespace vlmtrain::nn
