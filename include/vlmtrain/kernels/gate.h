#pragma once

#include <ATen/core/Tensor.h>

#include "vlmtrain/kernels/launchers.h"

namespace vlmtrain::kernels {

/// activation(gate) · up of the columns [gate, up] of x, dense [rows, 2 · features] in fp32, bf16 or fp16. REQUIRES:
/// has(kGatedActivation, x). Rounds once; moves 3 · features elements a row.
at::Tensor gated_activation(const at::Tensor& x, GateActivation activation);

/// The gradient of x for that of gated_activation(), dense. Moves 5 · features elements a row.
at::Tensor gated_activation_backward(const at::Tensor& gradient, const at::Tensor& x, GateActivation activation);

}  // namespace vlmtrain::kernels
