#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "vlmtrain/kernels/launchers.h"

namespace vlmtrain::kernels {

/// NF4 weights of equal width that are stored one after another, each in whole superblocks of 16384
/// values. A superblock has 256 blocks of 64 values. launchers.h has the formula of a value.
struct Nf4Weights {
  /// The place of a weight.
  struct Weight {
    int64_t first_super_block;
    int64_t first_row, rows;  ///< in the result
  };

  at::Tensor packed_indices;    ///< uint8 [superblocks · 8192]: two 4-bit indices per byte, the first in the high bits
  at::Tensor absmax;            ///< uint8 [superblocks · 256]: one code per block
  at::Tensor nested_absmax;     ///< fp32 [superblocks]: scale of the superblock's absmax codes
  at::Tensor nested_offset;     ///< fp32 [weights]: added to the absmax of a weight's blocks
  at::Tensor absmax_codebook;   ///< fp32 [256]: values of the absmax codes; may be strided
  at::Tensor values;            ///< fp32 [16] on the CPU: values of the indices, passed as a kernel argument
  int64_t columns;              ///< of all weights
  std::vector<Weight> weights;  ///< at most kMaxNf4WeightsPerLaunch, ascending
};

/// Writes the values of all weights to `result` `[rows, columns or more]`, fp32, bf16 or fp16, whose
/// rows are dense and may be further apart. Columns beyond those of the weights are set to zero. Rows
/// that belong to no weight are not written. The result is bit-identical to ATen's. Throws InternalError for no weight
/// or too many, or for a weight of 2³¹ values or more. REQUIRES: is_available(kNf4, packed_indices).
void nf4_dequantize(const at::Tensor& result, const Nf4Weights& blocks);

/// Writes (values · row_absmax) · step to `result`. values: int8 `[rows, columns]`. row_absmax:
/// fp32 `[rows]`. step: 1/127 for LLM.int8. result: `[rows, columns or more]`, fp32, bf16 or
/// fp16, as of nf4_dequantize(). REQUIRES: is_available(kInt8, values).
void int8_dequantize(const at::Tensor& result, const at::Tensor& values, const at::Tensor& row_absmax, double step);

namespace reference {

// The same with ATen's operations and roundings, for tests; the results are bit-identical.

/// Writes to `result` like the kernel.
void nf4_dequantize(const at::Tensor& result, const Nf4Weights& blocks);
at::Tensor int8_dequantize(const at::Tensor& values, const at::Tensor& row_absmax, double step, at::ScalarType dtype);

}  // namespace reference

}  // namespace vlmtrain::kernels
