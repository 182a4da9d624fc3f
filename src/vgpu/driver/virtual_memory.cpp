// Memory and addresses apart, as PyTorch's expandable segments use them.

#include <cuda.h>

#include "vgpu/core/device_memory.h"

using vlmtrain::vgpu::device_memory;
using vlmtrain::vgpu::DeviceMemory;

namespace {

CUresult to_result(bool condition) {
  return condition ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

}  // namespace

CUresult cuMemGetAllocationGranularity(size_t* bytes, const CUmemAllocationProp*, CUmemAllocationGranularity_flags) {
  *bytes = DeviceMemory::kPageBytes;
  return CUDA_SUCCESS;
}

CUresult cuMemAddressReserve(CUdeviceptr* address, size_t bytes, size_t, CUdeviceptr, unsigned long long) {
  const auto reserved = device_memory().reserve_addresses(bytes);
  if (!reserved) return CUDA_ERROR_OUT_OF_MEMORY;
  *address = *reserved;
  return CUDA_SUCCESS;
}

CUresult cuMemAddressFree(CUdeviceptr address, size_t) {
  return to_result(device_memory().free_addresses(address));
}

CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t bytes, const CUmemAllocationProp*,
                     unsigned long long) {
  const auto created = device_memory().create_pages(bytes);
  if (!created) return CUDA_ERROR_OUT_OF_MEMORY;
  *handle = *created;
  return CUDA_SUCCESS;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  return to_result(device_memory().release_pages(handle));
}

CUresult cuMemMap(CUdeviceptr address, size_t, size_t, CUmemGenericAllocationHandle handle, unsigned long long) {
  return to_result(device_memory().map(address, handle));
}

CUresult cuMemUnmap(CUdeviceptr address, size_t) {
  return to_result(device_memory().unmap(address));
}

CUresult cuMemSetAccess(CUdeviceptr, size_t, const CUmemAccessDesc*, size_t) {
  return CUDA_SUCCESS;
}
