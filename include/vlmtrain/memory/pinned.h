#pragma once

#include <ATen/core/Tensor.h>

namespace vlmtrain::memory {

/// Pinned memory of the host, from and to which copies do not hold up the host. Where the driver has none left it is
/// plain memory, so that copies wait for the device, and the log says so once.

/// A copy of `tensor`, of the host, or `tensor` itself where there is no pinned memory.
at::Tensor try_pin_memory(const at::Tensor& tensor);

/// Room for so many fp32 values.
at::Tensor empty_pinned(at::IntArrayRef sizes);

}  // namespace vlmtrain::memory
