// The functions of NVML that PyTorch's allocator calls. After an allocation failure, it lists the
// processes on the GPU, and asserts that NVML has the GPU. The real library does not have the
// virtual GPU.

#include <cuda.h>
#include <unistd.h>

#include "vgpu/core/device_memory.h"
#include "vgpu/core/virtual_gpu.h"

// No wheel ships nvml.h, so its types and status codes are declared here under other names.
namespace {

enum class NvmlStatus : int { kSuccess = 0, kInvalidArgument = 2, kNotFound = 6, kInsufficientSize = 7 };

/// nvmlProcessInfo_v1_t
struct NvmlProcessInfo {
  unsigned process;
  unsigned long long used_bytes;
};

/// nvmlDevice_t
using NvmlDevice = void*;

/// Returns a device handle, which callers treat as opaque.
NvmlDevice get_fake_device() {
  static char object;
  return &object;
}

}  // namespace

// NOLINTBEGIN(readability-identifier-naming): the names are NVIDIA's.
extern "C" {

NvmlStatus nvmlInit_v2() {
  return NvmlStatus::kSuccess;
}

NvmlStatus nvmlSystemGetCudaDriverVersion_v2(int* version) {
  *version = CUDA_VERSION;
  return NvmlStatus::kSuccess;
}

NvmlStatus nvmlDeviceGetHandleByPciBusId_v2(const char*, NvmlDevice* device) {
  if (vlmtrain::vgpu::virtual_gpu() == nullptr) return NvmlStatus::kNotFound;
  *device = get_fake_device();
  return NvmlStatus::kSuccess;
}

NvmlStatus nvmlDeviceGetComputeRunningProcesses(NvmlDevice, unsigned* count, NvmlProcessInfo* processes) {
  if (count == nullptr) return NvmlStatus::kInvalidArgument;
  const bool is_large_enough = *count >= 1 && processes != nullptr;
  *count = 1;
  if (!is_large_enough) return NvmlStatus::kInsufficientSize;
  const auto& memory = vlmtrain::vgpu::device_memory();
  processes[0] = {static_cast<unsigned>(getpid()), memory.capacity_bytes() - memory.available_bytes()};
  return NvmlStatus::kSuccess;
}

}  // extern "C"
// NOLINTEND(readability-identifier-naming)
