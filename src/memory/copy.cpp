#include "vlmtrain/memory/copy.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "vlmtrain/memory/pinned.h"

namespace vlmtrain::memory {

at::Tensor copy_to_device(const at::Tensor& tensor, at::Device device) {
  const bool pin = device.is_cuda() && tensor.device().is_cpu();
  return (pin ? try_pin_memory(tensor) : tensor).to(device, /*non_blocking=*/true);
}

at::Tensor copy_to_device(std::span<const int64_t> values, at::Device device, at::ScalarType type) {
  const at::Tensor host = at::empty({std::ssize(values)}, type);
  if (type == at::kInt) {
    std::ranges::copy(values, host.mutable_data_ptr<int32_t>());
  } else {
    std::ranges::copy(values, host.mutable_data_ptr<int64_t>());
  }
  return copy_to_device(host, device);
}

}  // namespace vlmtrain::memory
