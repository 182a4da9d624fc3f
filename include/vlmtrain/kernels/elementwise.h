#pragma once

#include <ATen/core/Tensor.h>

#include <span>

#include "vlmtrain/kernels/launchers.h"

namespace vlmtrain::kernels {

/// Returns function(x), elementwise; computes in fp32 and rounds once. x: dense, fp32, bf16 or
/// fp16. REQUIRES: has(kActivation, x).
at::Tensor activate(const at::Tensor& x, ActivationFunction function);

/// Returns dx for the gradient of activate(), dense.
at::Tensor activation_backward(const at::Tensor& gradient, const at::Tensor& x, ActivationFunction function);

/// Returns activation(gate) · up `[rows, features]` for the columns [gate, up] of x `[rows, 2 ·
/// features]`, as in SwiGLU and GeGLU; computes in fp32 and rounds once. x: dense, fp32, bf16 or
/// fp16. Reads and writes 3 · features elements per row. REQUIRES: has(kGatedActivation, x).
at::Tensor gated_activation(const at::Tensor& x, GateActivation activation);

/// Returns dx `[rows, 2 · features]` for the gradient of gated_activation(), dense. Reads and
/// writes 5 · features elements per row.
at::Tensor gated_activation_backward(const at::Tensor& gradient, const at::Tensor& x, GateActivation activation);

/// Independent dropout for several readers of the same rows, such as the adapters of one input.
/// Each element is dropped with `probability`, exact to 2⁻³²; the others are divided by 1 −
/// probability. The mask is a function of the stream's key, the row within the stream, the column
/// and the reader, so it is recomputed instead of stored.
struct DropoutParams {
  double probability = 0;                  ///< in [0, 1)
  std::span<const DropoutStream> streams;  ///< by ascending rows; the first begins with row 0
};

/// Writes each reader's copy of x after dropout to `dropped`; rounds once. One launch handles up to
/// kMaxDropoutStreams streams.
///
/// x: dense `[rows, columns]`, fp32, bf16 or fp16, with less than 2³² columns. dropped: dense
/// `[readers, rows, columns]`, or `[rows, columns]` for one reader. REQUIRES: has(kDropout, x).
void dropout(const at::Tensor& dropped, const at::Tensor& x, const DropoutParams& params);

/// Adds x after dropout, summed over the readers, to `sum`; rounds once. This is the backward pass:
/// x are the gradients of the readers' inputs, and `sum` that of the common input.
///
/// sum: dense `[rows, columns]`. x: `[readers, rows, columns]`, or `[rows, columns]`.
void dropout_backward(const at::Tensor& sum, const at::Tensor& x, const DropoutParams& params);

}  // namespace vlmtrain::kernels
