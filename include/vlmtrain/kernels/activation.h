#pragma once

#include <ATen/core/Tensor.h>

#include "vlmtrain/kernels/launchers.h"

namespace vlmtrain::kernels {

/// The function of each element of a dense x in fp32, bf16 or fp16. REQUIRES: has(kActivation, x). Rounds once.
at::Tensor activate(const at::Tensor& x, ActivationFunction function);

/// The gradient of x for that of activate(), dense.
at::Tensor activation_backward(const at::Tensor& gradient, const at::Tensor& x, ActivationFunction function);

}  // namespace vlmtrain::kernels
