#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <span>

#include "vlmtrain/kernels/launchers.h"

namespace vlmtrain::kernels {

/// Parameters of independent dropout for several consumers of the same rows, such as the LoRA
/// adapters that share an input. Each element is dropped with `probability`, exact to 2⁻³²; the
/// others are divided by 1 − probability. The mask is a function of the stream's key, the row
/// within the stream, the column and the consumer, so it is recomputed instead of stored.
struct DropoutParams {
  double probability = 0;                  ///< in [0, 1)
  std::span<const DropoutStream> streams;  ///< by ascending first_row; the first begins with row 0; not owned
};

/// Writes each consumer's copy of x after dropout to `dropped`; rounds once. One launch handles up
/// to kMaxDropoutStreamsPerLaunch streams.
///
/// x: dense `[rows, columns]`, fp32, bf16 or fp16, with less than 2³² columns. dropped: dense
/// `[consumers, rows, columns]`, or `[rows, columns]` for one consumer. Throws InternalError for
/// other shapes. REQUIRES: is_available(kDropout, x).
void dropout(const at::Tensor& dropped, const at::Tensor& x, const DropoutParams& params);

/// Adds x after dropout, summed over the consumers, to `sum`; rounds once. This is the backward
/// pass: x holds the gradients of the consumers' inputs, and `sum` is the gradient of the common
/// input.
///
/// sum: dense `[rows, columns]`. x: dense `[consumers, rows, columns]`, or `[rows, columns]`.
void dropout_backward(const at::Tensor& sum, const at::Tensor& x, const DropoutParams& params);

namespace reference {

// The same with ATen's operations, for tests: fp64, rounded once.

/// Computes Philox4x32-10 (see src/kernels/cuda/primitives.h) on the CPU. `key` and `counter` have
/// their low word first.
std::array<uint32_t, 4> philox(std::array<uint32_t, 2> key, std::array<uint32_t, 4> counter);

/// Returns the masks of x [rows, columns] on x's device, computed on the CPU: fp64 zeros and ones
/// [consumers, rows, columns].
at::Tensor make_dropout_masks(const at::Tensor& x, int64_t num_consumers, const DropoutParams& params);
/// Returns x · mask / (1 − probability), [consumers, rows, columns].
at::Tensor dropout(const at::Tensor& x, const at::Tensor& masks, double probability);
/// Returns sum + Σ x · mask / (1 − probability) over the consumers.
at::Tensor dropout_backward(const at::Tensor& sum, const at::Tensor& x, const at::Tensor& masks, double probability);

}  // namespace reference

}  // namespace vlmtrain::kernels
