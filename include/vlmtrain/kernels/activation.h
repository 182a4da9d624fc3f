#pragma once

#include <ATen/core/Tensor.h>

#include "vlmtrain/kernels/launchers.h"

namespace vlmtrain::kernels {

/// The function of each element of a dense x in fp32, bf16 or fp16. REQUIRES: has(kActivation, x). Rounds once.
at::Tensor activate(const at::Tensor& x, ActivationFunction function);

/// The gradient of x for that of activate(), dense.
at::Tensor activation_backward(const at::Tensor& gradient, const at::Tensor& x, ActivationFunction function);

/// activation(gate) · up of the columns [gate, up] of x, dense [rows, 2 · features] in fp32, bf16 or fp16. REQUIRES:
/// has(kGatedActivation, x). Rounds once; moves 3 · features elements a row.
at::Tensor gated_activation(const at::Tensor& x, GateActivation activation);

/// The gradient of x for that of gated_activation(), dense. Moves 5 · features elements a row.
at::Tensor gated_activation_backward(const at::Tensor& gradient, const at::Tensor& x, GateActivation activation);

}  // namespace vlmtrain::kernels
