// The device, its properties, errors, and the driver's entry points.

#include "vgpu/runtime/device.h"

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstring>

#include "vgpu/core/device_memory.h"
#include "vgpu/core/instrumentation.h"
#include "vgpu/core/virtual_gpu.h"
#include "vgpu/runtime/copy_races.h"
#include "vgpu/runtime/streams.h"

namespace vlmtrain::vgpu {

namespace {

thread_local cudaError_t last_error = cudaSuccess;
std::atomic<cudaError_t> sticky_error{cudaSuccess};

struct ErrorDescription {
  cudaError_t error;
  const char* name;
  const char* text;
};

/// Names and messages of the errors that the stub libraries return.
constexpr std::array kErrorDescriptions{
    ErrorDescription{cudaSuccess, "cudaSuccess", "no error"},
    ErrorDescription{cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    ErrorDescription{cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    ErrorDescription{cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration", "invalid configuration argument"},
    ErrorDescription{cudaErrorMissingConfiguration, "cudaErrorMissingConfiguration", "launch without a configuration"},
    ErrorDescription{cudaErrorInvalidSymbol, "cudaErrorInvalidSymbol", "invalid device symbol"},
    ErrorDescription{cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    ErrorDescription{cudaErrorInvalidDeviceFunction, "cudaErrorInvalidDeviceFunction", "invalid device function"},
    ErrorDescription{cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    ErrorDescription{cudaErrorNoKernelImageForDevice, "cudaErrorNoKernelImageForDevice",
                     "no kernel image is available for execution on the device"},
    ErrorDescription{cudaErrorNotSupported, "cudaErrorNotSupported", "operation not supported"},
    ErrorDescription{cudaErrorIllegalAddress, "cudaErrorIllegalAddress", "an illegal memory access was encountered"},
};

const ErrorDescription& find_error_description(cudaError_t error) {
  static constexpr ErrorDescription kUnknownError{cudaErrorUnknown, "cudaErrorUnknown", "unknown error"};
  const auto* const it = std::ranges::find(kErrorDescriptions, error, &ErrorDescription::error);
  return it == kErrorDescriptions.end() ? kUnknownError : *it;
}

}  // namespace

cudaError_t set_last_error(cudaError_t error) {
  last_error = error;
  return error;
}

cudaError_t set_sticky_error(cudaError_t error) {
  sticky_error = error;
  return set_last_error(error);
}

cudaError_t get_device_status() {
  const cudaError_t error = sticky_error;
  return error == cudaSuccess ? cudaSuccess : set_last_error(error);
}

}  // namespace vlmtrain::vgpu

using vlmtrain::vgpu::copy_race_detector;
using vlmtrain::vgpu::device_clock;
using vlmtrain::vgpu::device_memory;
using vlmtrain::vgpu::get_device_attribute;
using vlmtrain::vgpu::get_device_status;
using vlmtrain::vgpu::global_counters;
using vlmtrain::vgpu::operation_trace;
using vlmtrain::vgpu::set_last_error;
using vlmtrain::vgpu::virtual_gpu;

namespace {

cudaError_t check_device(int device) {
  if (virtual_gpu() == nullptr) return set_last_error(cudaErrorNoDevice);
  return device == 0 ? cudaSuccess : set_last_error(cudaErrorInvalidDevice);
}

void set_limit_properties(cudaDeviceProp& properties) {
  properties.maxThreadsPerBlock = get_device_attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
  properties.maxThreadsDim[0] = get_device_attribute(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X);
  properties.maxThreadsDim[1] = get_device_attribute(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y);
  properties.maxThreadsDim[2] = get_device_attribute(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z);
  properties.maxGridSize[0] = get_device_attribute(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X);
  properties.maxGridSize[1] = get_device_attribute(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y);
  properties.maxGridSize[2] = get_device_attribute(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z);
  properties.warpSize = get_device_attribute(CU_DEVICE_ATTRIBUTE_WARP_SIZE);
  properties.regsPerBlock = get_device_attribute(CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK);
  properties.regsPerMultiprocessor = get_device_attribute(CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR);
  properties.memPitch = static_cast<size_t>(get_device_attribute(CU_DEVICE_ATTRIBUTE_MAX_PITCH));
  properties.textureAlignment = static_cast<size_t>(get_device_attribute(CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT));
  properties.totalConstMem = static_cast<size_t>(get_device_attribute(CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY));
  properties.sharedMemPerBlock =
      static_cast<size_t>(get_device_attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK));
  properties.reservedSharedMemPerBlock =
      static_cast<size_t>(get_device_attribute(CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK));
}

void set_gpu_properties(cudaDeviceProp& properties) {
  const auto& gpu = virtual_gpu()->gpu;
  const auto& architecture = virtual_gpu()->architecture;
  gpu.device_name.copy(properties.name, sizeof properties.name - 1);
  std::memcpy(&properties.uuid, "vlmtrain-virtual", sizeof properties.uuid);
  properties.totalGlobalMem = device_memory().reported_bytes();
  properties.major = architecture.compute_capability / 10;
  properties.minor = architecture.compute_capability % 10;
  properties.multiProcessorCount = gpu.num_multiprocessors;
  properties.l2CacheSize = static_cast<int>(gpu.l2_cache_bytes);
  properties.maxThreadsPerMultiProcessor = architecture.max_threads_per_multiprocessor;
  properties.maxBlocksPerMultiProcessor = architecture.max_blocks_per_multiprocessor;
  properties.sharedMemPerMultiprocessor = static_cast<size_t>(architecture.shared_bytes_per_multiprocessor);
  properties.sharedMemPerBlockOptin = static_cast<size_t>(architecture.max_shared_bytes_per_block);
  properties.clusterLaunch = get_device_attribute(CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH);
}

void set_capability_properties(cudaDeviceProp& properties) {
  for (int* const capability :
       {&properties.canMapHostMemory, &properties.concurrentKernels, &properties.unifiedAddressing,
        &properties.streamPrioritiesSupported, &properties.globalL1CacheSupported, &properties.localL1CacheSupported,
        &properties.managedMemory, &properties.concurrentManagedAccess, &properties.computePreemptionSupported,
        &properties.cooperativeLaunch, &properties.hostRegisterSupported, &properties.pciBusID}) {
    *capability = 1;
  }
  properties.asyncEngineCount = get_device_attribute(CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT);
}

}  // namespace

cudaError_t cudaGetDeviceCount(int* count) {
  *count = virtual_gpu() == nullptr ? 0 : 1;
  return check_device(0);
}

cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return check_device(0);
}

cudaError_t cudaSetDevice(int device) {
  return check_device(device);
}

cudaError_t cudaInitDevice(int device, unsigned, unsigned) {
  return check_device(device);
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (const auto error = check_device(device); error != cudaSuccess) return error;
  *properties = {};
  set_limit_properties(*properties);
  set_gpu_properties(*properties);
  set_capability_properties(*properties);
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  if (const auto error = check_device(device); error != cudaSuccess) return error;
  *value = get_device_attribute(static_cast<CUdevice_attribute>(attribute));
  return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char* id, int bytes, int device) {
  if (const auto error = check_device(device); error != cudaSuccess) return error;
  std::snprintf(id, static_cast<size_t>(bytes), "0000:01:00.0");
  return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  if (least != nullptr) *least = 0;
  if (greatest != nullptr) *greatest = -5;
  return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int* can_access, int, int) {
  *can_access = 0;
  return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize() {
  ++global_counters().num_device_synchronizations;
  operation_trace().add({"wait for the device"});
  copy_race_detector().synchronize_all();
  device_clock().wait();
  return get_device_status();
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaGetLastError() {
  const cudaError_t error = vlmtrain::vgpu::last_error;
  vlmtrain::vgpu::last_error = vlmtrain::vgpu::sticky_error;  // a sticky error cannot be cleared
  return error;
}

cudaError_t cudaPeekAtLastError() {
  return vlmtrain::vgpu::last_error;
}

const char* cudaGetErrorName(cudaError_t error) {
  return vlmtrain::vgpu::find_error_description(error).name;
}

const char* cudaGetErrorString(cudaError_t error) {
  return vlmtrain::vgpu::find_error_description(error).text;
}

// LibTorch looks up the driver's functions for virtual memory through the runtime.

namespace {

/// Returns a handle of the stub libcuda.so.1. It is found through a function that this library
/// links, because the process may have loaded another libcuda.so.1.
void* get_driver_library() {
  static void* const library = [] {
    Dl_info info{};
    const bool has_library_info = dladdr(reinterpret_cast<const void*>(&cuDriverGetVersion), &info) != 0;
    void* const handle = has_library_info ? dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD) : nullptr;
    return handle != nullptr ? handle : RTLD_DEFAULT;
  }();
  return library;
}

}  // namespace

cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
  *function = dlsym(get_driver_library(), name);
  if (result != nullptr) {
    *result = *function == nullptr ? cudaDriverEntryPointSymbolNotFound : cudaDriverEntryPointSuccess;
  }
  return cudaSuccess;
}
