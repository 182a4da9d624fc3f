#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <span>

#include "vlmtrain/kernels/launchers.h"

namespace vlmtrain::kernels {

/// A parameter and its optimizer state. All tensors are on one device and, except `weight`, dense.
/// `moments` holds the moving averages of the gradient and of its square, both in one of three
/// formats: fp32 of the parameter's size, bf16 `[blocks, 256]`, or uint8 codes `[blocks, 256]` with
/// fp32 absmax `[blocks]`. The number of blocks is ⌈elements / 256⌉.
struct AdamWParameter {
  at::Tensor master;    ///< fp32; undefined if it is split or rounded away
  at::Tensor gradient;  ///< fp32
  at::Tensor weight;    ///< bf16 or fp16 copy of the master, overwritten; dense, or a matrix whose rows have a stride;
                        ///< undefined if the master is the weight; without a master, dense bf16
  at::Tensor low_bits{};  ///< int16: the low halves of masters that are split (split_master.h); without them and
                          ///< without a master, the weight is rounded stochastically
  at::Tensor steps;       ///< fp32 scalar: number of updates, this one included
  std::array<at::Tensor, 2> moments{};
  std::array<at::Tensor, 2> absmax{};  ///< largest absolute value of each block; defined with 8-bit moments only
  uint32_t tensor_id = 0;  ///< index within the optimizer; selects the random numbers for bf16 moments and weights
};

/// Hyperparameters and shared inputs of an update.
struct AdamWStep {
  double learning_rate = 0, beta1 = 0, beta2 = 0, epsilon = 0, weight_decay = 0;
  at::Tensor divisor{};    ///< fp32 scalar by which gradients are divided; undefined: 1
  at::Tensor skip_flag{};  ///< fp32 scalar, required: if not 0, the update changes nothing
  at::Tensor
      code_values{};  ///< fp32 [2, 256], ascending: values of the 8-bit codes of each moment; undefined otherwise
  at::Tensor rounding_bounds{};  ///< fp32 [2, 256]: upper rounding bound of each code; the last of each row is unused
  uint64_t seed = 0;             ///< seed of the stochastic rounding of bf16 moments and weights; must differ between
                                 ///< steps
};

/// Updates parameters in place with AdamW. Reads and writes each value once; one launch updates up
/// to kMaxAdamWTensorsPerLaunch parameters. Allocates no GPU memory. REQUIRES: is_available(kAdamW,
/// weight); all moments have one format, all masters one, and all weights one type.
void adamw(std::span<const AdamWParameter> tensors, const AdamWStep& step);

namespace reference {

/// Returns the fp32 master weights after the first update, which starts from zero moments. Computes
/// with ATen's operations in fp64, for tests.
at::Tensor run_first_adamw_step(const at::Tensor& master, const at::Tensor& gradient, const AdamWStep& step);

}  // namespace reference

}  // namespace vlmtrain::kernels
