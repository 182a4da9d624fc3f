#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <span>

namespace vlmtrain::memory {

/// Copies a tensor of the host to the device without waiting: from pinned memory if `device` is CUDA, since only such a
/// copy does not hold up the host.
at::Tensor copy_to_device(const at::Tensor& tensor, at::Device device);

/// The same of numbers: [n], of a type of integers that holds them all.
at::Tensor copy_to_device(std::span<const int64_t> values, at::Device device, at::ScalarType type = at::kLong);

}  // namespace vlmtrain::memory
