#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <c10/core/Allocator.h>
#include <c10/cuda/CUDACachingAllocator.h>

#include <algorithm>

#include "vlmtrain/base/error.h"
#include "vlmtrain/memory/device.h"

// The one file that sees CUDA's headers: the setting that PyTorch's allocator reads at its start is no use here, since
// a limit changes while a run goes. A virtual call of LibTorch's allocator needs no library to link with.

namespace vlmtrain::memory {

namespace {

/// What the allocator takes a share of: the size that the card's properties say, not the one that its driver's memory
/// figures do.
double bytes_of_properties(int device) {
  using GetProperties = cudaError_t (*)(cudaDeviceProp*, int);
  const auto get = reinterpret_cast<GetProperties>(dlsym(RTLD_DEFAULT, "cudaGetDeviceProperties"));
  cudaDeviceProp properties{};
  if (get == nullptr || get(&properties, device) != cudaSuccess) {
    throw run_error("device cuda:{}: it does not tell its properties", device);
  }
  return static_cast<double>(properties.totalGlobalMem);
}

}  // namespace

void limit_reserved_bytes(at::Device device, int64_t bytes) {
  if (device.is_cpu()) return;
  const double fraction = std::clamp(static_cast<double>(bytes) / bytes_of_properties(device.index()), 0.0, 1.0);
  auto* const allocator = c10::GetAllocator(c10::DeviceType::CUDA);
  static_cast<c10::cuda::CUDACachingAllocator::CUDAAllocator*>(allocator)->setMemoryFraction(fraction, device.index());
}

}  // namespace vlmtrain::memory
