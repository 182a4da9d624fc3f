#pragma once

#include <ATen/core/Tensor.h>

#include "vlmtrain/kernels/launchers.h"

namespace vlmtrain::kernels {

/// Returns whether activate() supports x: is_available(kActivation, x), and x is contiguous or a matrix
/// with contiguous rows.
bool can_run_activation(const at::Tensor& x);

/// Returns function(x), elementwise; computes in fp32 and rounds once. Rows of the result are followed
/// by `border_columns` uninitialized columns. REQUIRES: can_run_activation(x); x is a matrix if
/// `border_columns` is not 0.
at::Tensor activate(const at::Tensor& x, ActivationFunction function, int64_t border_columns = 0);

/// Returns dx, with the row stride of x, given `gradient`, the gradient of activate()'s result.
/// REQUIRES: can_run_activation(x).
at::Tensor activation_backward(const at::Tensor& gradient, const at::Tensor& x, ActivationFunction function);

/// Returns whether gated_activation() supports x: is_available(kGatedActivation, x), and the rows of
/// the matrix x are contiguous.
bool can_run_gated_activation(const at::Tensor& x);

/// Returns activation(gate) · up `[rows, features]` for the columns [gate, up] of x `[rows, 2 ·
/// features]`, as in SwiGLU and GeGLU; computes in fp32 and rounds once. Reads and writes 3 · features
/// elements per row. Rows of the result are followed by `border_columns` uninitialized columns.
/// REQUIRES: can_run_gated_activation(x).
at::Tensor gated_activation(const at::Tensor& x, GateActivation activation, int64_t border_columns = 0);

/// Returns dx `[rows, 2 · features]`, with the row stride of x, given `gradient` `[rows, features]`,
/// the gradient of gated_activation()'s result. Reads and writes 5 · features elements per row.
/// REQUIRES: can_run_gated_activation(x).
at::Tensor gated_activation_backward(const at::Tensor& gradient, const at::Tensor& x, GateActivation activation);

namespace reference {

// The same with ATen's operations, for tests: fp64, rounded once.

at::Tensor activate(const at::Tensor& x, ActivationFunction function);
at::Tensor activation_backward(const at::Tensor& gradient, const at::Tensor& x, ActivationFunction function);
at::Tensor gated_activation(const at::Tensor& x, GateActivation activation);
at::Tensor gated_activation_backward(const at::Tensor& gradient, const at::Tensor& x, GateActivation activation);

}  // namespace reference

}  // namespace vlmtrain::kernels
