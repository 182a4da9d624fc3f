#pragma once

#include <ATen/core/Tensor.h>

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

namespace reference {

// The same with ATen's operations, for tests: fp64, rounded once.

at::Tensor activate(const at::Tensor& x, ActivationFunction function);
at::Tensor activation_backward(const at::Tensor& gradient, const at::Tensor& x, ActivationFunction function);
at::Tensor gated_activation(const at::Tensor& x, GateActivation activation);
at::Tensor gated_activation_backward(const at::Tensor& gradient, const at::Tensor& x, GateActivation activation);

}  // namespace reference

}  // namespace vlmtrain::kernels
