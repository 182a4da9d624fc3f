#pragma once

#include <ATen/core/Tensor.h>

namespace vlmtrain::nn {

/// a · bᵀ for a [m, k] and b [n, k], of one dtype; either may be a transposed view, so that a · b and aᵀ · b need no
/// copy. No gradient is recorded.
///
/// On the CPU the fastest of the ways that this processor has (nn/product_ways.h), always with sums in fp32: fp32
/// through oneDNN, 16 bits by instructions for them or in fp32. On CUDA at::mm.
at::Tensor matmul_transposed(const at::Tensor& a, const at::Tensor& b);

}  // namespace vlmtrain::nn
