#include "vlmtrain/memory/copy.h"

#include "vlmtrain/memory/pinned.h"

namespace vlmtrain::memory {

at::Tensor copy_to_device(const at::Tensor& tensor, at::Device device) {
  const bool pin = device.is_cuda() && tensor.device().is_cpu();
  return (pin ? pinned_copy(tensor) : tensor).to(device, /*non_blocking=*/true);
}

}  // namespace vlmtrain::memory
