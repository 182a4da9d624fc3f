#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <string_view>

namespace vlmtrain::models {

/// Returns the first non-finite value and its index, such as "nan at [3, 5]"; empty if all values
/// are finite. Quantized and integer tensors are always finite. Tensors on the meta device count as
/// finite, here and below.
std::string describe_first_non_finite_value(const at::Tensor& values);

/// Returns whether a finite value becomes infinite in `dtype`.
bool overflows(const at::Tensor& values, at::ScalarType dtype);

/// Returns a sentence about the tensor `name` and its first value that overflows; empty if
/// overflows() is false.
std::string describe_overflow(std::string_view name, const at::Tensor& values, at::ScalarType dtype);

}  // namespace vlmtrain::models
