// The functions of NVML that PyTorch's allocator calls. After an allocation failure, it lists the
// processes on the GPU, and asserts that NVML has the GPU. The real library does not have the
// virtual GPU.

#include <cuda.h>
#include <unistd.h>

#include "vgpu/core/device_memory.h"
#include "vgpu/core/virtual_gpu.h"

// No wheel ships nvml.h, so its types and status codes are declared here under other names.
namespace {

enum class Status : int { kSuccess = 0, kInvalidArgument = 2, kNotFound = 6, kInsufficientSize = 7 };

/// nvmlProcessInfo_v1_t
struct ProcessInfo {
  unsigned process;
  unsigned long long used_bytes;
};

/// nvmlDevice_t
using Device = void*;

/// Returns a device handle, which callers treat as opaque.
Device get_fake_device() {
  static char object;
  return &object;
}

}  // namespace

// NOLINTBEGIN(readability-identifier-naming): the names are NVIDIA's.
extern "C" {

Status nvmlInit_v2() {
  return Status::kSuccess;
}

Status nvmlSystemGetCudaDriverVersion_v2(int* version) {
  *version = CUDA_VERSION;
  return Status::kSuccess;
}

Status nvmlDeviceGetHandleByPciBusId_v2(const char*, Device* device) {
  if (vlmtrain::vgpu::virtual_gpu() == nullptr) return Status::kNotFound;
  *device = get_fake_device();
  return Status::kSuccess;
}

Status nvmlDeviceGetComputeRunningProcesses(Device, unsigned* count, ProcessInfo* processes) {
  if (count == nullptr) return Status::kInvalidArgument;
  const bool is_large_enough = *count >= 1 && processes != nullptr;
  *count = 1;
  if (!is_large_enough) return Status::kInsufficientSize;
  const auto& memory = vlmtrain::vgpu::device_memory();
  processes[0] = {static_cast<unsigned>(getpid()), memory.capacity_bytes() - memory.free_bytes()};
  return Status::kSuccess;
}

}  // extern "C"
// NOLINTEND(readability-identifier-naming)
