#include "vgpu/runtime/host_memory.h"

#include <cuda_runtime_api.h>

#include <cstdlib>
#include <iterator>

#include "vgpu/core/count.h"
#include "vgpu/core/faults.h"
#include "vgpu/core/immortal.h"
#include "vgpu/runtime/error.h"

namespace vlmtrain::vgpu {

void HostMemory::add(const void* first, size_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  ranges_[reinterpret_cast<uintptr_t>(first)] = bytes;
}

bool HostMemory::remove(const void* first) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return ranges_.erase(reinterpret_cast<uintptr_t>(first)) > 0;
}

bool HostMemory::is_pinned(const void* pointer) const {
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto behind = ranges_.upper_bound(address);
  if (behind == ranges_.begin()) return false;
  const auto& [first, bytes] = *std::prev(behind);
  return address - first < bytes;
}

HostMemory& host_memory() {
  return immortal<HostMemory>();
}

}  // namespace vlmtrain::vgpu

using vlmtrain::vgpu::counts;
using vlmtrain::vgpu::fail;
using vlmtrain::vgpu::Fallible;
using vlmtrain::vgpu::faults;
using vlmtrain::vgpu::host_memory;

cudaError_t cudaHostAlloc(void** pointer, size_t bytes, unsigned) {
  if (faults().strikes(Fallible::kHostAllocation)) return fail(cudaErrorMemoryAllocation);
  constexpr size_t kPage = 4096;
  *pointer = std::aligned_alloc(kPage, (bytes + kPage) / kPage * kPage);
  if (*pointer == nullptr) return fail(cudaErrorMemoryAllocation);
  ++counts().host_allocations;
  host_memory().add(*pointer, bytes);
  return cudaSuccess;
}

cudaError_t cudaMallocHost(void** pointer, size_t bytes) {
  return cudaHostAlloc(pointer, bytes, cudaHostAllocDefault);
}

cudaError_t cudaFreeHost(void* pointer) {
  if (pointer == nullptr) return cudaSuccess;
  if (!host_memory().remove(pointer)) return fail(cudaErrorInvalidValue);
  std::free(pointer);
  return cudaSuccess;
}

cudaError_t cudaHostRegister(void* pointer, size_t bytes, unsigned) {
  host_memory().add(pointer, bytes);
  return cudaSuccess;
}

cudaError_t cudaHostUnregister(void* pointer) {
  return host_memory().remove(pointer) ? cudaSuccess : fail(cudaErrorInvalidValue);
}

cudaError_t cudaHostGetDevicePointer(void** device_pointer, void* pointer, unsigned) {
  *device_pointer = pointer;
  return cudaSuccess;
}
