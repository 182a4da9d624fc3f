#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace vlmtrain::nn {

/// A kernel of attention as ATen has it, with the settings of a call: its forward and its backward operation.
class AttentionKernel {
 public:
  struct Gradients {
    at::Tensor query, key, value;
  };

  virtual ~AttentionKernel() = default;

  /// Whether forward() is one operation of ATen's, of which autograd knows backward().
  virtual bool has_autograd_formula() const { return true; }

  /// The output, and behind it what backward() reads beside it. Where gradients are recorded ATen records its own.
  virtual std::vector<at::Tensor> forward(const at::Tensor& query, const at::Tensor& key,
                                          const at::Tensor& value) const = 0;
  /// What ATen's own backward pass calls. `outputs` is what forward() gave.
  virtual Gradients backward(const at::Tensor& gradient, const at::Tensor& query, const at::Tensor& key,
                             const at::Tensor& value, const std::vector<at::Tensor>& outputs) const = 0;

 protected:
  AttentionKernel() = default;
  AttentionKernel(const AttentionKernel&) = default;
  AttentionKernel& operator=(const AttentionKernel&) = default;
};

/// Whether 16-bit attention on this device goes through the flash kernel, which needs the tensor cores of sm_80.
bool has_flash_kernel(at::ScalarType dtype, at::Device device);

/// Rows of segments in one stream, as the kernels on CUDA take them.
struct VarlenArgs {
  at::Tensor offsets;  ///< int32 [segments + 1], on the device
  int64_t max_length = 0;
  bool causal = false;
  std::optional<int64_t> window = std::nullopt;  ///< flash only
};

/// Variable-length flash attention: query [rows, heads, head_dim], key and value [rows, key_value_heads, head_dim].
std::shared_ptr<const AttentionKernel> make_cuda_flash_kernel(VarlenArgs args);
/// The memory-efficient kernel: all [1, rows, heads, head_dim].
std::shared_ptr<const AttentionKernel> make_cuda_memory_efficient_kernel(VarlenArgs args);
/// The flash kernel of the CPU: [segments, heads, rows, head_dim], of key and value [segments, key_value_heads, …].
std::shared_ptr<const AttentionKernel> make_cpu_flash_kernel(bool causal);

// With a mask [rows, rows] that is added to the scores of all heads alike, and of which no gradient is asked.

/// The same of one segment.
std::shared_ptr<const AttentionKernel> make_cpu_masked_kernel(const at::Tensor& mask);
/// The memory-efficient kernel of one segment, all [1, rows, heads, head_dim]. The mask's rows lie a multiple of 16
/// elements apart.
std::shared_ptr<const AttentionKernel> make_cuda_masked_kernel(at::Tensor mask);

}  // namespace vlmtrain::nn
