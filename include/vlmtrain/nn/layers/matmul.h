#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function_hook.h>

#include <cstdint>
#include <vector>

#include "vlmtrain/memory/cpu_info.h"

namespace vlmtrain::nn {

/// Returns a · bᵀ, [m, n], for a [m, k] and b [n, k] of one dtype. Either may be a transposed view,
/// so a · b and aᵀ · b need no copy. Records no gradients. Uses at::mm on CUDA. Uses the backend of
/// select_matmul_backend() on the CPU, except for very few rows, and sums in fp32.
at::Tensor matmul_transposed(const at::Tensor& a, const at::Tensor& b);

/// A CPU implementation of matrix products.
enum class MatmulBackend : uint8_t {
  kOneDnn,  ///< oneDNN's inner product in fp32
  kAten,    ///< at::mm: LibTorch's choice, slow in 16 bits without instructions for them
  kFp32,    ///< converts 16-bit operands to fp32 first
};

/// Returns the backend for matrix products in `dtype` on a processor with this instruction set of
/// oneDNN. Never chosen by timing: backends round differently, and runs must resume bit-exactly.
///
/// fp32 uses oneDNN, because MKL uses generic kernels on AMD processors with AVX-512. With AVX2
/// alone and both operands transposed, MKL is up to 1.4 times as fast.
///
/// 16-bit dtypes use kAten if the processor has instructions for their products, which halve the
/// time. Otherwise they use kFp32: 2.7 times as fast as oneDNN's emulation of bf16 with AVX-512, and
/// up to 100 times as fast as ATen's loops.
MatmulBackend select_matmul_backend(at::ScalarType dtype, const memory::OneDnnIsa& isa);
/// Returns select_matmul_backend() for this processor and environment. Thread-safe.
MatmulBackend select_matmul_backend(at::ScalarType dtype);

/// Returns a · bᵀ, computed by mkldnn::_linear_pointwise, LibTorch's entry point to oneDNN's inner
/// product for plain tensors.
at::Tensor onednn_matmul(const at::Tensor& a, const at::Tensor& b);

/// Returns `matrix` if matmul_transposed() can read it without copying, else a contiguous copy.
/// oneDNN reads dense matrices only; cuBLAS also reads columns of a wider tensor.
at::Tensor make_dense(const at::Tensor& matrix);

/// Writes scale · a · bᵀ into `out`, which may be columns of a wider tensor.
void matmul_transposed_out(at::Tensor out, const at::Tensor& a, const at::Tensor& b, double scale = 1);

/// Adds a · b to `y` in place; a [m, k], b [k, n], y [m, n]. `y` may be columns of a wider tensor.
void addmm_in_place(const at::Tensor& y, const at::Tensor& a, const at::Tensor& b);

/// A post-accumulate hook of a parameter that holds the sum of the parameter's gradients. A
/// backward function may add a gradient to sum() itself, in the sum's precision and without a
/// temporary tensor. Other gradients arrive through autograd. The hook runs after all uses of the
/// parameter in a backward pass, also if autograd has no gradient for it. Not thread-safe.
class GradientSink : public torch::autograd::PostAccumulateGradHook {
 public:
  /// Returns the sum, fp32 in the parameter's shape; undefined if gradients must arrive through
  /// autograd.
  virtual at::Tensor sum() const = 0;
  /// Returns whether sum() has a value to add to; if not, its contents are uninitialized.
  virtual bool has_sum() const = 0;
  /// Declares that sum() has a value. Must be called after writing to it.
  virtual void set_has_sum() = 0;
};

/// Adds a · bᵀ, for a [m, k] and b [n, k] of one dtype, to the sums of `parameters`. The gradients
/// of the parameters are consecutive rows of the product. On CUDA, 16-bit products are not rounded
/// before the addition. Returns false and does nothing if a parameter has no sink, if the sums are
/// not adjacent in memory, or if only some of them have a value.
bool add_product_to_gradient_sums(const std::vector<at::Tensor>& parameters, const at::Tensor& a, const at::Tensor& b);

}  // namespace vlmtrain::nn
