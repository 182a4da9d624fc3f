// Devices and contexts of the driver. cuInit finds no device: libraries with a CUDA runtime of their own inside (cuDNN,
// NCCL, cuSPARSE) then stay quiet, while LibTorch, which asks the runtime, has its card.

#include <cuda.h>

#include <algorithm>
#include <cstdint>
#include <string_view>

#include "vgpu/core/attributes.h"
#include "vgpu/core/card.h"

namespace {

/// Never looked into, by no one.
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
  *value = vlmtrain::vgpu::device_attribute(attribute);
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
