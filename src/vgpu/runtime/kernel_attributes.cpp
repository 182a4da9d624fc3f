// What a program asks about a kernel before it launches it, and what it sets.

#include <cuda_runtime_api.h>

#include <algorithm>

#include "vgpu/core/card.h"
#include "vgpu/runtime/error.h"
#include "vgpu/runtime/kernel_registry.h"

namespace vlmtrain::vgpu {

namespace {

constexpr int kWarpSize = 32;

/// How many blocks of a kernel a multiprocessor holds, by threads and shared memory. Registers are not counted: how
/// many a kernel needs is known to the real driver only.
int resident_blocks(int block_threads, size_t shared_bytes) {
  constexpr size_t kReservedPerBlock = 1024;
  const auto& architecture = virtual_gpu()->architecture;
  const int rounded_threads = std::max(kWarpSize, (block_threads + kWarpSize - 1) / kWarpSize * kWarpSize);
  const int thread_limit = architecture.threads_per_multiprocessor / rounded_threads;
  const auto shared_memory_limit = static_cast<int>(static_cast<size_t>(architecture.shared_bytes_per_multiprocessor) /
                                                    (shared_bytes + kReservedPerBlock));
  return std::min({architecture.blocks_per_multiprocessor, thread_limit, shared_memory_limit});
}

}  // namespace

}  // namespace vlmtrain::vgpu

using vlmtrain::vgpu::kernel_registry;
using vlmtrain::vgpu::set_last_error;
using vlmtrain::vgpu::virtual_gpu;

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* host_function) {
  auto* const kernel = kernel_registry().find_kernel(host_function);
  if (kernel == nullptr) return set_last_error(cudaErrorInvalidDeviceFunction);
  if (virtual_gpu() == nullptr) return set_last_error(cudaErrorNoDevice);
  const int architecture = virtual_gpu()->architecture.number;
  const int code = kernel->code->find_code(architecture);
  if (code == 0) return set_last_error(cudaErrorNoKernelImageForDevice);
  constexpr int kRegistersPerThread = 32;
  *attributes = {};
  attributes->maxThreadsPerBlock = 1024;
  attributes->numRegs = kRegistersPerThread;
  attributes->ptxVersion = code;
  attributes->binaryVersion = code / 10 == architecture / 10 ? code : architecture;
  attributes->maxDynamicSharedSizeBytes = static_cast<int>(kernel->shared_bytes_limit);
  attributes->preferredShmemCarveout = cudaSharedmemCarveoutDefault;
  return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void* host_function, cudaFuncAttribute attribute, int value) {
  auto* const kernel = kernel_registry().find_kernel(host_function);
  if (kernel == nullptr) return set_last_error(cudaErrorInvalidDeviceFunction);
  if (virtual_gpu() == nullptr) return set_last_error(cudaErrorNoDevice);
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
  if (value < 0 || value > virtual_gpu()->architecture.shared_bytes_per_block)
    return set_last_error(cudaErrorInvalidValue);
  kernel->shared_bytes_limit = value;
  return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void* host_function,
                                                                   int block_threads, size_t shared_bytes, unsigned) {
  if (kernel_registry().find_kernel(host_function) == nullptr) return set_last_error(cudaErrorInvalidDeviceFunction);
  if (virtual_gpu() == nullptr) return set_last_error(cudaErrorNoDevice);
  *blocks = vlmtrain::vgpu::resident_blocks(block_threads, shared_bytes);
  return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* host_function, int block_threads,
                                                          size_t shared_bytes) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, host_function, block_threads, shared_bytes,
                                                                cudaOccupancyDefault);
}
