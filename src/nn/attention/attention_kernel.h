#pragma once

#include <ATen/core/Tensor.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "vlmtrain/nn/attention/attention.h"
#include "vlmtrain/nn/attention/span_attention.h"

namespace vlmtrain::nn {

/// Returns the factor of the scores, 1/sqrt(head_dim); `query` [..., head_dim].
inline double attention_scale(const at::Tensor& query) {
  return 1.0 / std::sqrt(static_cast<double>(query.size(-1)));
}

/// A kernel of ATen with the settings of a call: its forward and backward operations. Immutable.
class AttentionKernel {
 public:
  /// The result of backward().
  struct Gradients {
    at::Tensor query, key, value;
  };

  virtual ~AttentionKernel() = default;

  /// Returns whether forward() is one operation with an autograd formula in ATen.
  virtual bool has_autograd_formula() const { return true; }

  /// Returns the output, followed by the tensors that backward() needs. Records gradients as ATen
  /// does.
  virtual std::vector<at::Tensor> forward(const at::Tensor& query, const at::Tensor& key,
                                          const at::Tensor& value) const = 0;
  /// Computes the gradients as ATen's autograd formula does. `outputs` is the result of forward().
  virtual Gradients backward(const at::Tensor& gradient, const at::Tensor& query, const at::Tensor& key,
                             const at::Tensor& value, const std::vector<at::Tensor>& outputs) const = 0;

 protected:
  AttentionKernel() = default;
  AttentionKernel(const AttentionKernel&) = default;
  AttentionKernel& operator=(const AttentionKernel&) = default;
};

/// Returns whether attention in this dtype uses the flash kernel on this device, which needs the
/// tensor cores of sm_80.
bool has_flash_kernel(at::ScalarType dtype, at::Device device);

/// Segments of a packed stream, as the CUDA kernels take them.
struct VarlenArgs {
  at::Tensor offsets;  ///< int32 [segments + 1], on the device
  int64_t max_length = 0;
  bool causal = false;
  std::optional<int64_t> window = std::nullopt;  ///< flash only
};

/// Returns the variable-length flash kernel: query [rows, heads, head_dim], key and value [rows,
/// key_value_heads, head_dim].
std::shared_ptr<const AttentionKernel> make_cuda_flash_kernel(VarlenArgs args);
/// Returns the memory-efficient kernel: all [1, rows, heads, head_dim].
std::shared_ptr<const AttentionKernel> make_cuda_memory_efficient_kernel(VarlenArgs args);
/// Returns the flash kernel of the CPU: query [segments, heads, rows, head_dim], key and value
/// [segments, key_value_heads, rows, head_dim].
std::shared_ptr<const AttentionKernel> make_cpu_flash_kernel(bool causal);

// Kernels with a mask [rows, rows], added to the scores of all heads and without gradient.

/// Returns the flash kernel of the CPU for one segment.
std::shared_ptr<const AttentionKernel> make_cpu_masked_kernel(const at::Tensor& mask);
/// Returns the memory-efficient kernel for one segment, all [1, rows, heads, head_dim]. REQUIRES:
/// rows of the mask are a multiple of 16 elements apart.
std::shared_ptr<const AttentionKernel> make_cuda_masked_kernel(at::Tensor mask);

/// Rows of a stream that attend to more keys than one kernel covers.
struct ExtraKeys {
  at::Tensor query_rows;  ///< int64 [n], rows whose queries attend to more; each once
  at::Tensor key_rows;    ///< int64 [n], rows of these keys and values; each once
};

/// Returns the later rows of each span, in an order that makes their attention causal: queries are
/// all rows of a span but the last, keys all but the first, both reversed. REQUIRES: spans of more
/// than one row.
ExtraKeys make_ahead_keys(const BidirectionalSpans& spans);

/// Returns a kernel that merges attention to two disjoint sets of keys: those of `first`, for all
/// rows, and those of `second`, which runs over the rows of `extra`. Both kernels take and return
/// [rows, heads, head_dim] and return the log-sum-exps [heads, rows] as their second output.
std::shared_ptr<const AttentionKernel> make_joined_kernel(std::shared_ptr<const AttentionKernel> first,
                                                          std::shared_ptr<const AttentionKernel> second,
                                                          ExtraKeys extra);

/// The maximum number of segments per launch: segments, or the batch, are the y or z dimension of
/// CUDA's grid, which is limited to 65535.
inline constexpr int64_t kMaxSegmentsPerLaunch = 65535;

/// Attention within some of the segments, given their rows of query, key and value.
using SegmentAttention =
    std::function<at::Tensor(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, const Segments&)>;

/// Calls `attend` for all rows, in chunks of at most `max_segments` segments.
at::Tensor attend_chunked(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                          const Segments& segments, int64_t max_segments, const SegmentAttention& attend);

}  // namespace vlmtrain::nn
