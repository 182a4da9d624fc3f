#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace vlmtrain::nn {

// The tables of bitsandbytes and its blockwise quantisation (bitsandbytes/functional.py and backends/default/ops.py).

/// NF4's 16 values, ascending, fp32.
at::Tensor make_nf4_codebook();

enum class Signedness { kSigned, kUnsigned };

/// The dynamic map of 8 bits (Dettmers et al. 2022, 8-bit Optimizers via Block-wise Quantization, arXiv 2110.02861):
/// 256 values, ascending, fp32; 0 and 1 are among them.
at::Tensor make_dynamic_codebook(Signedness signedness = Signedness::kSigned);

/// [n - 1], what lies halfway between neighbours of [n].
at::Tensor midpoints(const at::Tensor& ascending);

struct QuantizedBlocks {
  at::Tensor indices;  ///< uint8 [n], of the values of a codebook
  at::Tensor absmax;   ///< fp32, one for a block
};

/// Each value of fp32 [n], divided by the largest absolute value of its block, becomes the index of the nearest value
/// of the codebook. The last block may be shorter.
QuantizedBlocks quantize_blocks(const at::Tensor& values, int64_t block_size, const at::Tensor& codebook);

}  // namespace vlmtrain::nn
