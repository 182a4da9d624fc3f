#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "vlmtrain/kernels/launchers.h"

namespace vlmtrain::kernels {

/// NF4 weights that are stored contiguously, each in whole superblocks of 16384 values (launchers.h has
/// the formula).
struct Nf4Blocks {
  at::Tensor packed;                        ///< uint8 [superblocks · 8192]
  at::Tensor absmax;                        ///< uint8 [superblocks · 256]
  at::Tensor nested_absmax;                 ///< fp32 [superblocks]
  at::Tensor nested_offset;                 ///< fp32 [weights]
  at::Tensor absmax_codes;                  ///< fp32 [256], may be strided
  at::Tensor values;                        ///< fp32 [16] on the CPU
  std::vector<int64_t> first_super_blocks;  ///< of each weight, at most kMaxNf4Weights
};

/// Writes the values of all blocks to `result`: dense `[superblocks · 16384]`, fp32, bf16 or fp16. The
/// result is bit-identical to ATen's. REQUIRES: has(kNf4, packed).
void nf4_dequantize(const at::Tensor& result, const Nf4Blocks& blocks);

/// Writes (values · row_absmax) · step to `result`. values: int8 `[rows, columns]`. row_absmax: fp32
/// `[rows]`. result: dense, fp32, bf16 or fp16. REQUIRES: has(kInt8, values).
void int8_dequantize(const at::Tensor& result, const at::Tensor& values, const at::Tensor& row_absmax, double step);

}  // namespace vlmtrain::kernels
