#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <string_view>

namespace vlmtrain::models {

/// Returns the first value that is not finite, as "nan at [3, 5]"; empty where all are. Quantized and integer tensors
/// have none.
std::string find_non_finite(const at::Tensor& values);

/// Returns whether a finite value of `values` becomes infinite in `dtype`.
bool overflows(const at::Tensor& values, at::ScalarType dtype);

/// Returns the sentence that names tensor and value where overflows(); empty where not.
std::string describe_overflow(std::string_view name, const at::Tensor& values, at::ScalarType dtype);

}  // namespace vlmtrain::models
