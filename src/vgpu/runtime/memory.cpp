// Device memory, and what kind of memory a pointer is.

#include <cuda_runtime_api.h>

#include "vgpu/core/device_memory.h"
#include "vgpu/runtime/error.h"
#include "vgpu/runtime/host_memory.h"

using vlmtrain::vgpu::device_memory;
using vlmtrain::vgpu::get_device_status;
using vlmtrain::vgpu::pinned_host_memory;
using vlmtrain::vgpu::set_last_error;

cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  *pointer = nullptr;
  if (const auto error = get_device_status(); error != cudaSuccess) return error;
  if (bytes == 0) return cudaSuccess;
  const auto address = device_memory().allocate(bytes);
  if (!address) return set_last_error(cudaErrorMemoryAllocation);
  *pointer = reinterpret_cast<void*>(*address);
  return cudaSuccess;
}

cudaError_t cudaFree(void* pointer) {
  const bool freed = pointer == nullptr || device_memory().free(reinterpret_cast<uint64_t>(pointer));
  return freed ? get_device_status() : set_last_error(cudaErrorInvalidValue);
}

cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  *free_bytes = device_memory().free_bytes();
  *total_bytes = device_memory().capacity_bytes();
  return get_device_status();
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
  *attributes = {};
  attributes->type = cudaMemoryTypeUnregistered;
  attributes->device = cudaInvalidDeviceId;
  void* const address = const_cast<void*>(pointer);
  if (device_memory().contains(pointer)) {
    attributes->type = cudaMemoryTypeDevice;
    attributes->device = 0;
    attributes->devicePointer = address;
  } else if (pinned_host_memory().is_pinned(pointer)) {
    attributes->type = cudaMemoryTypeHost;
    attributes->device = 0;
    attributes->devicePointer = attributes->hostPointer = address;
  }
  return cudaSuccess;
}
