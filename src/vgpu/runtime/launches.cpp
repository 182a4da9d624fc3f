// Kernel launches, which are checked against the GPU's limits and counted, and kernel attributes.

#include <cuda_runtime_api.h>
#include <cxxabi.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "vgpu/core/instrumentation.h"
#include "vgpu/core/virtual_gpu.h"
#include "vgpu/runtime/device.h"
#include "vgpu/runtime/kernel_registry.h"
#include "vgpu/runtime/streams.h"

namespace vlmtrain::vgpu {

namespace {

struct KernelLaunch {
  dim3 grid;
  dim3 block;
  size_t shared_bytes = 0;
  cudaStream_t stream = nullptr;
};

/// Why a real GPU would reject a launch; cudaSuccess if it would not.
struct LaunchError {
  cudaError_t error = cudaSuccess;
  const char* reason = "";
};

bool fits_launch_limits(const dim3& size, CUdevice_attribute x, CUdevice_attribute y, CUdevice_attribute z) {
  const auto fits = [](unsigned value, CUdevice_attribute limit) {
    return value > 0 && value <= static_cast<unsigned>(get_device_attribute(limit));
  };
  return fits(size.x, x) && fits(size.y, y) && fits(size.z, z);
}

/// Checks a launch against the limits of the GPU and of the kernel.
LaunchError validate_launch(const KernelLaunch& launch, const Kernel& kernel) {
  if (!fits_launch_limits(launch.grid, CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y,
                          CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z)) {
    return {cudaErrorInvalidConfiguration, "grid"};
  }
  const auto threads = uint64_t{launch.block.x} * launch.block.y * launch.block.z;
  if (!fits_launch_limits(launch.block, CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X, CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y,
                          CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z) ||
      threads > static_cast<uint64_t>(get_device_attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK))) {
    return {cudaErrorInvalidConfiguration, "block"};
  }
  if (launch.shared_bytes > static_cast<size_t>(kernel.max_dynamic_shared_bytes)) {
    return {cudaErrorInvalidValue, "dynamic shared memory"};
  }
  if (kernel.module->find_code_architecture(virtual_gpu()->architecture.compute_capability) == 0) {
    return {cudaErrorNoKernelImageForDevice, "no code for this architecture"};
  }
  return {};
}

std::string demangle_kernel_name(const char* mangled) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> name(abi::__cxa_demangle(mangled, nullptr, nullptr, &status),
                                                         &std::free);
  return name ? name.get() : mangled;
}

std::string format_dim3(const dim3& size) {
  return std::to_string(size.x) + "," + std::to_string(size.y) + "," + std::to_string(size.z);
}

cudaError_t reject_launch(const LaunchError& rejection, const KernelLaunch& launch, const char* name) {
  ++global_counters().num_rejected_launches;
  print_stderr_line({"launch rejected, ", rejection.reason, ": grid ", format_dim3(launch.grid), ", block ",
                     format_dim3(launch.block), ", ", std::to_string(launch.shared_bytes),
                     " bytes of dynamic shared memory: ", demangle_kernel_name(name)});
  return set_last_error(rejection.error);
}

cudaError_t launch_kernel(const void* host_function, const KernelLaunch& launch) {
  Kernel* const kernel = kernel_registry().find_kernel(host_function);
  if (kernel == nullptr) {
    return reject_launch({cudaErrorInvalidDeviceFunction, "the kernel is not registered"}, launch, "?");
  }
  if (virtual_gpu() == nullptr) return set_last_error(cudaErrorNoDevice);
  const LaunchError rejection = validate_launch(launch, *kernel);
  if (rejection.error != cudaSuccess) return reject_launch(rejection, launch, kernel->name);
  if (const auto error = get_device_status(); error != cudaSuccess) return error;
  if (fault_injector().consume_scheduled_fault(FaultPoint::kIllegalAddress, kernel->name))
    return set_sticky_error(cudaErrorIllegalAddress);
  if (fault_injector().consume_scheduled_fault(FaultPoint::kLaunch, kernel->name))
    return set_last_error(cudaErrorMemoryAllocation);
  if (!kernel->module->load()) return set_last_error(cudaErrorMemoryAllocation);
  device_clock().enqueue_kernel();
  ++global_counters().num_launches;
  if (launch.stream == nullptr) stream_order().record_launch();
  ++kernel->num_launches;
  if (operation_trace().is_enabled()) {
    operation_trace().add({"launch", format_dim3(launch.grid), format_dim3(launch.block),
                           std::to_string(launch.shared_bytes), kernel->name});
  }
  return cudaSuccess;
}

/// Returns the launch configurations of this thread that __cudaPushCallConfiguration has received
/// and __cudaPopCallConfiguration has not yet returned, innermost last.
std::vector<KernelLaunch>& pending_launches() {
  thread_local std::vector<KernelLaunch> launches;
  return launches;
}

constexpr int kWarpSize = 32;

/// Returns the number of blocks of a kernel that fit on a multiprocessor, limited by threads and
/// shared memory. Registers are not taken into account, because only the real driver has their
/// number.
int count_resident_blocks(int threads_per_block, size_t shared_bytes) {
  constexpr size_t kReservedBytesPerBlock = 1024;  // shared memory that the driver reserves per block from sm_80 on
  const auto& architecture = virtual_gpu()->architecture;
  const int warp_aligned_threads = std::max(kWarpSize, (threads_per_block + kWarpSize - 1) / kWarpSize * kWarpSize);
  const int max_blocks_by_threads = architecture.max_threads_per_multiprocessor / warp_aligned_threads;
  const auto max_blocks_by_shared_memory = static_cast<int>(
      static_cast<size_t>(architecture.shared_bytes_per_multiprocessor) / (shared_bytes + kReservedBytesPerBlock));
  return std::min({architecture.max_blocks_per_multiprocessor, max_blocks_by_threads, max_blocks_by_shared_memory});
}

}  // namespace

}  // namespace vlmtrain::vgpu

using vlmtrain::vgpu::kernel_registry;
using vlmtrain::vgpu::launch_kernel;
using vlmtrain::vgpu::pending_launches;
using vlmtrain::vgpu::set_last_error;
using vlmtrain::vgpu::virtual_gpu;

// The code that nvcc generates for <<<…>>> calls these; no header declares them.
// NOLINTBEGIN(bugprone-reserved-identifier,readability-identifier-naming)
extern "C" {

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream) {
  pending_launches().push_back({grid, block, shared_bytes, stream});
  return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared_bytes, void* stream) {
  if (pending_launches().empty()) return set_last_error(cudaErrorMissingConfiguration);
  const auto launch = pending_launches().back();
  pending_launches().pop_back();
  *grid = launch.grid;
  *block = launch.block;
  *shared_bytes = launch.shared_bytes;
  *static_cast<cudaStream_t*>(stream) = launch.stream;
  return cudaSuccess;
}

cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void**, size_t shared_bytes,
                               cudaStream_t stream) {
  return launch_kernel(kernel, {grid, block, shared_bytes, stream});
}

}  // extern "C"
// NOLINTEND(bugprone-reserved-identifier,readability-identifier-naming)

cudaError_t cudaLaunchKernel(const void* host_function, dim3 grid, dim3 block, void**, size_t shared_bytes,
                             cudaStream_t stream) {
  return launch_kernel(host_function, {grid, block, shared_bytes, stream});
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* configuration, const void* host_function, void**) {
  return launch_kernel(host_function, {configuration->gridDim, configuration->blockDim, configuration->dynamicSmemBytes,
                                       configuration->stream});
}

// Kernel attributes and occupancy.

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* host_function) {
  auto* const kernel = kernel_registry().find_kernel(host_function);
  if (kernel == nullptr) return set_last_error(cudaErrorInvalidDeviceFunction);
  if (virtual_gpu() == nullptr) return set_last_error(cudaErrorNoDevice);
  const int architecture = virtual_gpu()->architecture.compute_capability;
  const int code_architecture = kernel->module->find_code_architecture(architecture);
  if (code_architecture == 0) return set_last_error(cudaErrorNoKernelImageForDevice);
  constexpr int kRegistersPerThread = 32;  // a plausible value; only the real driver has the actual one
  *attributes = {};
  attributes->maxThreadsPerBlock = 1024;
  attributes->numRegs = kRegistersPerThread;
  attributes->ptxVersion = code_architecture;
  attributes->binaryVersion = code_architecture / 10 == architecture / 10 ? code_architecture : architecture;
  attributes->maxDynamicSharedSizeBytes = static_cast<int>(kernel->max_dynamic_shared_bytes);
  attributes->preferredShmemCarveout = cudaSharedmemCarveoutDefault;
  return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void* host_function, cudaFuncAttribute attribute, int value) {
  auto* const kernel = kernel_registry().find_kernel(host_function);
  if (kernel == nullptr) return set_last_error(cudaErrorInvalidDeviceFunction);
  if (virtual_gpu() == nullptr) return set_last_error(cudaErrorNoDevice);
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
  if (value < 0 || value > virtual_gpu()->architecture.max_shared_bytes_per_block)
    return set_last_error(cudaErrorInvalidValue);
  kernel->max_dynamic_shared_bytes = value;
  return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void* host_function,
                                                                   int threads_per_block, size_t shared_bytes,
                                                                   unsigned) {
  if (kernel_registry().find_kernel(host_function) == nullptr) return set_last_error(cudaErrorInvalidDeviceFunction);
  if (virtual_gpu() == nullptr) return set_last_error(cudaErrorNoDevice);
  *blocks = vlmtrain::vgpu::count_resident_blocks(threads_per_block, shared_bytes);
  return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* host_function, int threads_per_block,
                                                          size_t shared_bytes) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, host_function, threads_per_block, shared_bytes,
                                                                cudaOccupancyDefault);
}
