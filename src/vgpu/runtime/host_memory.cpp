#include "vgpu/runtime/host_memory.h"

#include <cuda_runtime_api.h>

#include <cstdlib>
#include <iterator>

#include "vgpu/core/count.h"
#include "vgpu/core/faults.h"
#include "vgpu/core/immortal.h"
#include "vgpu/runtime/error.h"

namespace vlmtrain::vgpu {

void PinnedHostMemory::add(const void* first, size_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  ranges_[reinterpret_cast<uintptr_t>(first)] = bytes;
}

bool PinnedHostMemory::remove(const void* first) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return ranges_.erase(reinterpret_cast<uintptr_t>(first)) > 0;
}

bool PinnedHostMemory::is_pinned(const void* pointer) const {
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto next = ranges_.upper_bound(address);
  if (next == ranges_.begin()) return false;
  const auto& [first, bytes] = *std::prev(next);
  return address - first < bytes;
}

PinnedHostMemory& pinned_host_memory() {
  return leaky_singleton<PinnedHostMemory>();
}

}  // namespace vlmtrain::vgpu

using vlmtrain::vgpu::fault_injector;
using vlmtrain::vgpu::FaultPoint;
using vlmtrain::vgpu::global_counters;
using vlmtrain::vgpu::pinned_host_memory;
using vlmtrain::vgpu::set_last_error;

cudaError_t cudaHostAlloc(void** pointer, size_t bytes, unsigned) {
  if (fault_injector().should_fail(FaultPoint::kHostAllocation)) return set_last_error(cudaErrorMemoryAllocation);
  constexpr size_t kPage = 4096;
  *pointer = std::aligned_alloc(kPage, (bytes + kPage) / kPage * kPage);
  if (*pointer == nullptr) return set_last_error(cudaErrorMemoryAllocation);
  ++global_counters().host_allocations;
  pinned_host_memory().add(*pointer, bytes);
  return cudaSuccess;
}

cudaError_t cudaMallocHost(void** pointer, size_t bytes) {
  return cudaHostAlloc(pointer, bytes, cudaHostAllocDefault);
}

cudaError_t cudaFreeHost(void* pointer) {
  if (pointer == nullptr) return cudaSuccess;
  if (!pinned_host_memory().remove(pointer)) return set_last_error(cudaErrorInvalidValue);
  std::free(pointer);
  return cudaSuccess;
}

cudaError_t cudaHostRegister(void* pointer, size_t bytes, unsigned) {
  pinned_host_memory().add(pointer, bytes);
  return cudaSuccess;
}

cudaError_t cudaHostUnregister(void* pointer) {
  return pinned_host_memory().remove(pointer) ? cudaSuccess : set_last_error(cudaErrorInvalidValue);
}

cudaError_t cudaHostGetDevicePointer(void** device_pointer, void* pointer, unsigned) {
  *device_pointer = pointer;
  return cudaSuccess;
}
