#pragma once

#include <ATen/core/Tensor.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "vlmtrain/nn/attention/attention.h"
#include "vlmtrain/nn/attention/span_attention.h"

namespace vlmtrain::nn {

/// Returns the factor of the scores, 1/sqrt(head_dim), for `query` [..., head_dim].
inline double compute_attention_scale(const at::Tensor& query) {
  return 1.0 / std::sqrt(static_cast<double>(query.size(-1)));
}

/// An attention kernel of ATen with the settings of a call. Immutable. The factory functions below
/// give the shapes of query, key and value.
class AttentionKernel {
 public:
  /// The result of backward().
  struct Gradients {
    at::Tensor query, key, value;
  };

  virtual ~AttentionKernel() = default;

  /// Returns whether autograd can differentiate forward(). If not, callers must use backward().
  virtual bool has_autograd_formula() const { return true; }

  /// Returns the output, of the query's shape, followed by the tensors that backward() needs.
  /// Records gradients as ATen does, if has_autograd_formula().
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

/// Returns whether attention in this dtype and with these heads uses the flash kernel on this CUDA
/// device. The kernel needs 16 bits, sm_80 or newer, and heads of at most 256 features.
bool has_flash_kernel(at::ScalarType dtype, int64_t head_dim, at::Device device);

/// The segments of a packed stream, as arguments of the CUDA kernels.
struct VarlenArgs {
  at::Tensor offsets;      ///< int32 [segments + 1], on the device
  int64_t max_length = 0;  ///< rows of the longest segment
  bool is_causal = false;
  std::optional<int64_t> window = std::nullopt;  ///< as in attention(); flash kernel only, with `is_causal`
};

/// Returns the variable-length flash kernel: query [rows, heads, head_dim], key and value [rows,
/// key_value_heads, head_dim].
std::shared_ptr<const AttentionKernel> make_cuda_flash_kernel(VarlenArgs args);
/// Returns the memory-efficient kernel: query, key and value [1, rows, heads, head_dim].
std::shared_ptr<const AttentionKernel> make_cuda_memory_efficient_kernel(VarlenArgs args);
/// Returns the flash kernel of the CPU: query [segments, heads, rows, head_dim], key and value
/// [segments, key_value_heads, rows, head_dim].
std::shared_ptr<const AttentionKernel> make_cpu_flash_kernel(bool is_causal);

// Kernels with a mask [rows, rows], which is added to the scores of all heads and has no gradient.

/// Returns the flash kernel of the CPU for one segment: query [1, heads, rows, head_dim], key and
/// value [1, key_value_heads, rows, head_dim].
std::shared_ptr<const AttentionKernel> make_cpu_masked_kernel(const at::Tensor& mask);
/// Returns the memory-efficient kernel for one segment: query, key and value [1, rows, heads,
/// head_dim]. REQUIRES: the row stride of the mask is a multiple of 16 elements.
std::shared_ptr<const AttentionKernel> make_cuda_masked_kernel(at::Tensor mask);

/// Rows of a stream that attend to more keys than the first kernel of make_combined_kernel()
/// covers.
struct ExtraKeys {
  at::Tensor query_rows;  ///< int64 [n], rows whose queries attend to more keys, without repetition
  at::Tensor key_rows;    ///< int64 [n], rows of those keys and values, without repetition
};

/// Returns, for each span, the queries and keys of the attention to later rows. They are in an
/// order that makes this attention causal: queries are all rows of the span except the last, keys
/// are all except the first, both reversed. A span of one row has none.
ExtraKeys make_future_keys(const BidirectionalSpans& spans);

/// Returns a kernel that merges attention to two disjoint sets of keys. `first` runs over all rows,
/// `second` over the rows of `extra_keys`. Both kernels take and return [rows, heads, head_dim],
/// return the log-sum-exps [heads, rows] as their second output, and save equally many tensors.
std::shared_ptr<const AttentionKernel> make_combined_kernel(std::shared_ptr<const AttentionKernel> first,
                                                            std::shared_ptr<const AttentionKernel> second,
                                                            ExtraKeys extra_keys);

/// The maximum number of segments per launch. ATen's kernels map segments, or the batch, to the y
/// or z dimension of CUDA's grid, which is limited to 65535.
inline constexpr int64_t kMaxSegmentsPerLaunch = 65535;

/// A function that computes attention within some of the segments, given their rows of query, key
/// and value.
using SegmentAttentionFunction =
    std::function<at::Tensor(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, const Segments&)>;

/// Returns the concatenated results of `attend` for chunks of at most `max_segments` segments.
at::Tensor attend_chunked(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                          const Segments& segments, int64_t max_segments, const SegmentAttentionFunction& attend);

/// The outputs of the attention kernels in the first run of a checkpointed block. The second run
/// reuses them, in the same order, instead of running the kernels again. Not thread-safe.
class SelectiveCheckpoint {
 public:
  /// kRecord in the first run of the block, kReplay in the second.
  enum class Mode : uint8_t { kRecord, kReplay };

  /// A guard. During its lifetime attend() on this thread records into, or replays from,
  /// `checkpoint`, which must outlive the guard. If null, attend() does neither. Scopes nest.
  class Scope {
   public:
    Scope(SelectiveCheckpoint* checkpoint, Mode mode);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    SelectiveCheckpoint* outer_checkpoint_;
    Mode outer_mode_;
  };

 private:
  friend at::Tensor attend(const std::shared_ptr<const AttentionKernel>& kernel, const at::Tensor& query,
                           const at::Tensor& key, const at::Tensor& value);

  std::vector<std::vector<at::Tensor>> recorded_outputs_;  // AttentionKernel::forward() of each call
  size_t next_call_index_ = 0;                             // next call to replay
};

/// Returns the output of `kernel`, run or replayed according to the thread's
/// SelectiveCheckpoint::Scope. Records its gradient if gradients are enabled. Throws InternalError
/// if a replay calls attention more often than the first run.
at::Tensor attend(const std::shared_ptr<const AttentionKernel>& kernel, const at::Tensor& query, const at::Tensor& key,
                  const at::Tensor& value);

}  // namespace vlmtrain::nn
