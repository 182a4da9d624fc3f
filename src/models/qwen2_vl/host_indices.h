#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace vlmtrain::models::qwen2_vl {

/// int64 [n] on the device, copied without waiting.
at::Tensor host_indices(const std::vector<int64_t>& values, at::Device device);

}  // namespace vlmtrain::models::qwen2_vl
