#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <string_view>

namespace vlmtrain::models {

/// Returns the first value that is not finite, as "nan at [3, 5]"; empty if all are finite.
/// Quantized and integer tensors are always finite.
std::string find_non_finite(const at::Tensor& values);

/// Returns whether a finite value becomes infinite in `dtype`.
bool overflows(const at::Tensor& values, at::ScalarType dtype);

/// Returns a sentence with tensor and value if overflows(), else an empty string.
std::string describe_overflow(std::string_view name, const at::Tensor& values, at::ScalarType dtype);

}  // namespace vlmtrain::models
