// The driver API. cuInit reports no device, so that libraries with a CUDA runtime of their own
// (cuDNN, NCCL, cuSPARSE) stay inactive. LibTorch uses the runtime API, which reports the virtual
// GPU.

#include <cuda.h>

#include <algorithm>
#include <cstdint>
#include <string_view>

#include "vgpu/core/device_memory.h"
#include "vgpu/core/virtual_gpu.h"

using vlmtrain::vgpu::device_memory;
using vlmtrain::vgpu::DeviceMemory;

namespace {

/// Returns a context, which callers treat as opaque.
CUcontext get_fake_context() {
  return reinterpret_cast<CUcontext>(uintptr_t{0x100});
}

}  // namespace

CUresult cuInit(unsigned) {
  return CUDA_ERROR_NO_DEVICE;
}

CUresult cuDriverGetVersion(int* version) {
  *version = CUDA_VERSION;
  return CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult, const char** text) {
  *text = "error of the virtual GPU";
  return CUDA_SUCCESS;
}

CUresult cuGetErrorName(CUresult, const char** name) {
  *name = "CUDA_ERROR_OF_VIRTUAL_GPU";
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int* count) {
  *count = 0;
  return CUDA_ERROR_NO_DEVICE;
}

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  *device = ordinal;
  return ordinal == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDeviceGetName(char* name, int capacity, CUdevice) {
  if (vlmtrain::vgpu::virtual_gpu() == nullptr) return CUDA_ERROR_NO_DEVICE;
  const std::string_view text = vlmtrain::vgpu::virtual_gpu()->gpu.device_name;
  const size_t length = std::min(text.size(), static_cast<size_t>(std::max(capacity - 1, 0)));
  text.copy(name, length);
  if (capacity > 0) name[length] = '\0';
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice) {
  if (vlmtrain::vgpu::virtual_gpu() == nullptr) return CUDA_ERROR_NO_DEVICE;
  *value = vlmtrain::vgpu::get_device_attribute(attribute);
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxGetState(CUdevice, unsigned* flags, int* active) {
  *flags = 0;
  *active = 1;
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice) {
  *context = get_fake_context();
  return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext* context) {
  *context = get_fake_context();
  return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext) {
  return CUDA_SUCCESS;
}

CUresult cuGetExportTable(const void** table, const CUuuid*) {
  *table = nullptr;
  return CUDA_ERROR_NOT_FOUND;
}

CUresult cuGetProcAddress(const char*, void** function, int, cuuint64_t, CUdriverProcAddressQueryResult* result) {
  *function = nullptr;
  if (result != nullptr) *result = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  return CUDA_ERROR_NOT_FOUND;
}

// Pointer attributes that LibTorch queries.

CUresult cuPointerGetAttribute(void* value, CUpointer_attribute attribute, CUdeviceptr pointer) {
  if (!vlmtrain::vgpu::device_memory().contains(reinterpret_cast<const void*>(pointer)))
    return CUDA_ERROR_INVALID_VALUE;
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      return cuCtxGetCurrent(static_cast<CUcontext*>(value));
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      *static_cast<int*>(value) = 0;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      *static_cast<unsigned*>(value) = CU_MEMORYTYPE_DEVICE;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
      *static_cast<CUdeviceptr*>(value) = pointer;
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_NOT_SUPPORTED;
  }
}

// The functions of virtual memory management that PyTorch's expandable segments call.

namespace {

CUresult to_driver_result(bool condition) {
  return condition ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

}  // namespace

CUresult cuMemGetAllocationGranularity(size_t* bytes, const CUmemAllocationProp*, CUmemAllocationGranularity_flags) {
  *bytes = DeviceMemory::kPageBytes;
  return CUDA_SUCCESS;
}

CUresult cuMemAddressReserve(CUdeviceptr* address, size_t bytes, size_t, CUdeviceptr, unsigned long long) {
  const auto reserved_address = device_memory().reserve_addresses(bytes);
  if (!reserved_address) return CUDA_ERROR_OUT_OF_MEMORY;
  *address = *reserved_address;
  return CUDA_SUCCESS;
}

CUresult cuMemAddressFree(CUdeviceptr address, size_t) {
  return to_driver_result(device_memory().free_addresses(address));
}

CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t bytes, const CUmemAllocationProp*,
                     unsigned long long) {
  const auto page_handle = device_memory().create_pages(bytes);
  if (!page_handle) return CUDA_ERROR_OUT_OF_MEMORY;
  *handle = *page_handle;
  return CUDA_SUCCESS;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  return to_driver_result(device_memory().release_pages(handle));
}

CUresult cuMemMap(CUdeviceptr address, size_t, size_t, CUmemGenericAllocationHandle handle, unsigned long long) {
  return to_driver_result(device_memory().map_pages(address, handle));
}

CUresult cuMemUnmap(CUdeviceptr address, size_t) {
  return to_driver_result(device_memory().unmap_pages(address));
}

CUresult cuMemSetAccess(CUdeviceptr, size_t, const CUmemAccessDesc*, size_t) {
  return CUDA_SUCCESS;
}
