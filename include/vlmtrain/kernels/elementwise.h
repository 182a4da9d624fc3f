#pragma once

#include <ATen/core/Tensor.h>

#include <span>

#include "vlmtrain/kernels/launchers.h"

namespace vlmtrain::kernels {

/// Returns function(x), elementwise; computes in fp32 and rounds once. x: dense, fp32, bf16 or
/// fp16. REQUIRES: is_available(kActivation, x).
at::Tensor activate(const at::Tensor& x, ActivationFunction function);

/// Returns dx, dense, given `gradient`, the dense gradient of activate()'s result.
at::Tensor activation_backward(const at::Tensor& gradient, const at::Tensor& x, ActivationFunction function);

/// Returns activation(gate) · up `[rows, features]` for the columns [gate, up] of x `[rows, 2 ·
/// features]`, as in SwiGLU and GeGLU; computes in fp32 and rounds once. x: dense, fp32, bf16 or
/// fp16. Reads and writes 3 · features elements per row. REQUIRES: is_available(kGatedActivation,
/// x).
at::Tensor gated_activation(const at::Tensor& x, GateActivation activation);

/// Returns dx `[rows, 2 · features]`, dense, given `gradient` `[rows, features]`, the dense
/// gradient of gated_activation()'s result. Reads and writes 5 · features elements per row.
at::Tensor gated_activation_backward(const at::Tensor& gradient, const at::Tensor& x, GateActivation activation);

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

}  // namespace vlmtrain::kernels
