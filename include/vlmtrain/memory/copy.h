#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

namespace vlmtrain::memory {

/// Copies a tensor of the host to the device without waiting: from pinned memory if `device` is CUDA, since only such a
/// copy does not hold up the host.
at::Tensor copy_to_device(const at::Tensor& tensor, at::Device device);

}  // namespace vlmtrain::memory
