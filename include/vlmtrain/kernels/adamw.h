#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <span>

#include "vlmtrain/kernels/launchers.h"

namespace vlmtrain::kernels {

/// What a step of AdamW moves of a tensor. All are dense; moments: the mean of gradients, then of their squares, both
/// in fp32 of the tensor's size, in bf16 [blocks, 256], or as codes, uint8 [blocks, 256], with fp32 absmax [blocks].
struct AdamWParameter {
  at::Tensor master;    ///< fp32
  at::Tensor gradient;  ///< fp32
  at::Tensor weight;    ///< bf16 or fp16, refreshed; undefined where the master is the weight
  at::Tensor steps;     ///< fp32 scalar: how many it has done, this one included
  std::array<at::Tensor, 2> moments{};
  std::array<at::Tensor, 2> absmax{};  ///< undefined but with codes
  uint32_t tensor_id = 0;              ///< of the tensor in the optimizer: bf16 rounds by it
};

struct AdamWStep {
  double learning_rate = 0, beta1 = 0, beta2 = 0, epsilon = 0, weight_decay = 0;
  at::Tensor divisor{};  ///< fp32 scalar, of the gradients; undefined: 1
  at::Tensor skipped{};  ///< fp32 scalar: where it is not 0, nothing changes
  at::Tensor codes{};    ///< fp32 [2, 256], ascending: what codes stand for, of each moment
  at::Tensor bounds{};   ///< fp32 [2, 256], between codes; the last of each is not used
  uint64_t seed = 0;     ///< of bf16's stochastic rounding; of each step another
};

/// Moves tensors whose moments are held alike, and whose weights have one type: each value is read and written once,
/// and 40 tensors take a launch. A skipped step changes no bit. Allocates nothing. REQUIRES: has(kAdamW, master).
void adamw(std::span<const AdamWParameter> tensors, const AdamWStep& step);

}  // namespace vlmtrain::kernels
