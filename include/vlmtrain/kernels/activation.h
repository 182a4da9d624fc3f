#pragma once

#include <ATen/core/Tensor.h>

#include "vlmtrain/kernels/launchers.h"

namespace vlmtrain::kernels {

/// Returns function(x), elementwise; computes in fp32 and rounds once. x: dense, fp32, bf16 or fp16.
/// REQUIRES: has(kActivation, x).
at::Tensor activate(const at::Tensor& x, ActivationFunction function);

/// Returns dx for the gradient of activate(), dense.
at::Tensor activation_backward(const at::Tensor& gradient, const at::Tensor& x, ActivationFunction function);

/// Returns activation(gate) · up `[rows, features]` for the columns [gate, up] of x
/// `[rows, 2 · features]`, as in SwiGLU and GeGLU; computes in fp32 and rounds once. x: dense, fp32,
/// bf16 or fp16. Reads and writes 3 · features elements per row. REQUIRES: has(kGatedActivation, x).
at::Tensor gated_activation(const at::Tensor& x, GateActivation activation);

/// Returns dx `[rows, 2 · features]` for the gradient of gated_activation(), dense. Reads and writes
/// 5 · features elements per row.
at::Tensor gated_activation_backward(const at::Tensor& gradient, const at::Tensor& x, GateActivation activation);

}  // namespace vlmtrain::kernels
