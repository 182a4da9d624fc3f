// What a program asks about a kernel before it launches it, and what it sets.

#include <cuda_runtime_api.h>

#include <algorithm>

#include "vgpu/core/card.h"
#include "vgpu/runtime/error.h"
#include "vgpu/runtime/kernel_registry.h"

namespace vlmtrain::vgpu {

namespace {

constexpr int kWarp = 32;

/// How many blocks of a kernel a multiprocessor holds, by threads and shared memory. Registers are not counted: how
/// many a kernel needs is known to the real driver only.
int resident_blocks(int block_threads, size_t shared_bytes) {
  constexpr size_t kReservedPerBlock = 1024;
  const auto& architecture = card()->architecture;
  const int warps_threads = std::max(kWarp, (block_threads + kWarp - 1) / kWarp * kWarp);
  const int by_threads = architecture.threads_per_multiprocessor / warps_threads;
  const auto by_shared_memory = static_cast<int>(static_cast<size_t>(architecture.shared_bytes_per_multiprocessor) /
                                                 (shared_bytes + kReservedPerBlock));
  return std::min({architecture.blocks_per_multiprocessor, by_threads, by_shared_memory});
}

}  // namespace

}  // namespace vlmtrain::vgpu

using vlmtrain::vgpu::card;
using vlmtrain::vgpu::fail;
using vlmtrain::vgpu::kernel_registry;

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* host_function) {
  auto* const kernel = kernel_registry().find_kernel(host_function);
  if (kernel == nullptr) return fail(cudaErrorInvalidDeviceFunction);
  if (card() == nullptr) return fail(cudaErrorNoDevice);
  const int architecture = card()->architecture.number;
  const int code = kernel->code->code_for(architecture);
  if (code == 0) return fail(cudaErrorNoKernelImageForDevice);
  constexpr int kPlausibleRegisters = 32;
  *attributes = {};
  attributes->maxThreadsPerBlock = 1024;
  attributes->numRegs = kPlausibleRegisters;
  attributes->ptxVersion = code;
  attributes->binaryVersion = code / 10 == architecture / 10 ? code : architecture;
  attributes->maxDynamicSharedSizeBytes = static_cast<int>(kernel->shared_bytes_limit);
  attributes->preferredShmemCarveout = cudaSharedmemCarveoutDefault;
  return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void* host_function, cudaFuncAttribute attribute, int value) {
  auto* const kernel = kernel_registry().find_kernel(host_function);
  if (kernel == nullptr) return fail(cudaErrorInvalidDeviceFunction);
  if (card() == nullptr) return fail(cudaErrorNoDevice);
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
  if (value < 0 || value > card()->architecture.shared_bytes_per_block) return fail(cudaErrorInvalidValue);
  kernel->shared_bytes_limit = value;
  return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void* host_function,
                                                                   int block_threads, size_t shared_bytes, unsigned) {
  if (kernel_registry().find_kernel(host_function) == nullptr) return fail(cudaErrorInvalidDeviceFunction);
  if (card() == nullptr) return fail(cudaErrorNoDevice);
  *blocks = vlmtrain::vgpu::resident_blocks(block_threads, shared_bytes);
  return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* host_function, int block_threads,
                                                          size_t shared_bytes) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, host_function, block_threads, shared_bytes,
                                                                cudaOccupancyDefault);
}
