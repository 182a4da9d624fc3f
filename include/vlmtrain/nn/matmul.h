#pragma once

#include <ATen/core/Tensor.h>

namespace vlmtrain::nn {

/// a · bᵀ for a [m, k] and b [n, k], of one dtype; either may be a transposed view, so that a · b and aᵀ · b need no
/// copy. No gradient is recorded.
///
/// fp32 on the CPU goes through oneDNN, where at::mm takes MKL: as fast on Intel's processors, and more than twice as
/// fast on AMD's with AVX-512, where MKL falls back to its generic kernels (docs/benchmarks/cpu-speed.md). Everything
/// else is at::mm.
at::Tensor matmul_transposed(const at::Tensor& a, const at::Tensor& b);

}  // namespace vlmtrain::nn
