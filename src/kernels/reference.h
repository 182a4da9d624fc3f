#pragma once

#include <ATen/core/Tensor.h>

#include "vlmtrain/kernels/gate.h"
#include "vlmtrain/kernels/rotate.h"

namespace vlmtrain::kernels::reference {

// What kernels compute, with ATen's operations in fp64, on any device; rounded once to the type of the inputs.

at::Tensor gate(const at::Tensor& x, GateActivation activation);
at::Tensor gate_backward(const at::Tensor& gradient, const at::Tensor& x, GateActivation activation);
/// [rows, heads, features] rotated.
at::Tensor rotate(const at::Tensor& heads, const at::Tensor& cos, const at::Tensor& sin, double direction);

}  // namespace vlmtrain::kernels::reference
