#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace vlmtrain::nn {

/// How a product of matrices on the CPU is made.
enum class MatmulBackend : uint8_t {
  kOneDnn,  ///< oneDNN's inner product, of fp32
  kAten,    ///< at::mm: in 16 bits what LibTorch takes, which without instructions for it is slow
  kFp32,    ///< factors in 16 bits are made fp32 first
};

/// How a · bᵀ of matrices that lie as these, a [m, k], b [n, k], is made on this processor. In fp32 by oneDNN: MKL
/// falls back to generic kernels on AMD's with AVX-512, and is up to 1.4 times as fast on those with AVX2 alone where
/// both factors are transposed; which, a race cannot tell reliably enough for runs that go on to the bit. In 16 bits a
/// race at the first use of a dtype says whether fp32 is at least three times as fast, as it is where the processor has
/// no instructions for them. Of tensors on the CPU and the meta device.
MatmulBackend select_matmul_backend(const at::Tensor& a, const at::Tensor& b);

/// mkldnn::_linear_pointwise, LibTorch's entry to oneDNN's inner product for plain tensors, without a bias.
at::Tensor onednn_matmul(const at::Tensor& a, const at::Tensor& b);

}  // namespace vlmtrain::nn
