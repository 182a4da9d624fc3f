#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace vlmtrain::nn {

/// How a product of matrices on the CPU is made.
enum class ProductWay : uint8_t {
  kOneDnn,      ///< oneDNN's inner product, of fp32
  kAten,        ///< at::mm: MKL in fp32; in 16 bits what LibTorch takes, which without instructions for it is slow
  kAtenInFp32,  ///< factors in 16 bits are made fp32 first
};

/// The fastest on this processor for a · bᵀ of matrices that lie as these, a [m, k], b [n, k], as a race at the first
/// use of each kind finds: processors differ (MKL is slow on some of AMD's, oneDNN with transposed factors on those
/// with AVX2 alone), and their makers do not tell. The first named of what is about as fast, so that a process finds
/// what the one before it found. Of tensors on the CPU and the meta device; of dtypes that were not raced kAten.
ProductWay product_way(const at::Tensor& a, const at::Tensor& b);

/// mkldnn::_linear_pointwise, LibTorch's entry to oneDNN's inner product for plain tensors, without a bias.
at::Tensor onednn_product(const at::Tensor& a, const at::Tensor& b);

}  // namespace vlmtrain::nn
