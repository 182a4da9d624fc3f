
#include "vgpu/runtime/kernel_registry.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <thread>

#include "vgpu/core/device_memory.h"
#include "vgpu/core/object_lifetime.h"
#include "vgpu/core/virtual_gpu.h"
#include "vgpu/runtime/device.h"

namespace vlmtrain::vgpu {

namespace {

// The layout of fat binaries: a wrapper points to a header, which is followed by entries. NVIDIA
// does not document it. The fields were found in the libraries of the CUDA wheels, and the
// architectures agree with the output of cuobjdump.
struct FatBinaryWrapper {
  static constexpr uint32_t kMagic = 0x466243b1;
  uint32_t magic;
  uint32_t version;
  const std::byte* data;
};

struct FatBinaryHeader {
  static constexpr uint32_t kMagic = 0xba55ed50;
  uint32_t magic;
  uint16_t version;
  uint16_t header_bytes;
  uint64_t body_bytes;
};

struct FatBinaryEntry {
  static constexpr uint16_t kPtx = 1;
  static constexpr uint16_t kMachineCode = 2;
  uint16_t kind;
  uint16_t unused_a;
  uint32_t header_bytes;
  uint64_t body_bytes;
  uint32_t unused_b[3];
  uint32_t architecture;
};
static_assert(offsetof(FatBinaryEntry, architecture) == 28);

template <class T>
T read_struct(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

/// Returns the newest architecture from `oldest` to `limit`, or 0 if there is none.
int find_newest_architecture(const std::vector<int>& architectures, int oldest, int limit) {
  int newest = 0;
  for (const int architecture : architectures) {
    if (architecture >= oldest && architecture <= limit) newest = std::max(newest, architecture);
  }
  return newest;
}

}  // namespace

void FatBinary::parse() {
  const auto wrapper = read_struct<FatBinaryWrapper>(static_cast<const std::byte*>(fat_binary_wrapper_));
  if (wrapper.magic != FatBinaryWrapper::kMagic) return;
  const auto header = read_struct<FatBinaryHeader>(wrapper.data);
  if (header.magic != FatBinaryHeader::kMagic) return;
  const std::byte* cursor = wrapper.data + header.header_bytes;
  const std::byte* const end = cursor + header.body_bytes;
  while (end - cursor >= static_cast<ptrdiff_t>(sizeof(FatBinaryEntry))) {
    const auto entry = read_struct<FatBinaryEntry>(cursor);
    if (entry.header_bytes == 0) return;
    if (entry.kind == FatBinaryEntry::kMachineCode)
      machine_code_architectures_.push_back(static_cast<int>(entry.architecture));
    if (entry.kind == FatBinaryEntry::kPtx) ptx_architectures_.push_back(static_cast<int>(entry.architecture));
    cursor += entry.header_bytes + entry.body_bytes;
  }
}

int FatBinary::find_code_architecture(int architecture) {
  std::call_once(parse_once_flag_, [this] { parse(); });
  const int machine_code_architecture =
      find_newest_architecture(machine_code_architectures_, architecture / 10 * 10, architecture);
  return machine_code_architecture != 0 ? machine_code_architecture
                                        : find_newest_architecture(ptx_architectures_, 0, architecture);
}

bool FatBinary::load() {
  if (is_loaded_) return true;
  const std::lock_guard<std::mutex> lock(load_mutex_);
  if (is_loaded_) return true;
  const ModuleLoadCost& module_load_cost = virtual_gpu()->module_load_cost;
  if (!device_memory().grow_context(module_load_cost.context_growth_bytes)) return false;
  if (module_load_cost.load_seconds > 0)
    std::this_thread::sleep_for(std::chrono::duration<double>(module_load_cost.load_seconds));
  is_loaded_ = true;
  return true;
}

FatBinary* KernelRegistry::add_fat_binary(const void* wrapper) {
  const std::unique_lock<std::shared_mutex> lock(mutex_);
  return &binaries_.emplace_back(wrapper);
}

void KernelRegistry::add_kernel(const void* host_function, const char* name, FatBinary* module) {
  const std::unique_lock<std::shared_mutex> lock(mutex_);
  Kernel& kernel = kernels_[host_function];
  kernel.name = name;
  kernel.module = module;
}

void KernelRegistry::add_variable(const void* host_variable, size_t bytes) {
  const std::unique_lock<std::shared_mutex> lock(mutex_);
  variables_[host_variable] = {device_memory().allocate_variable(bytes), bytes};
}

Kernel* KernelRegistry::find_kernel(const void* host_function) {
  const std::shared_lock<std::shared_mutex> lock(mutex_);
  const auto it = kernels_.find(host_function);
  return it == kernels_.end() ? nullptr : &it->second;
}

std::optional<DeviceVariable> KernelRegistry::find_variable(const void* host_variable) const {
  const std::shared_lock<std::shared_mutex> lock(mutex_);
  const auto it = variables_.find(host_variable);
  return it == variables_.end() ? std::nullopt : std::optional{it->second};
}

void KernelRegistry::for_each_launched_kernel(void (*visit)(void* context, const char* name, uint64_t num_launches),
                                              void* context) const {
  const std::shared_lock<std::shared_mutex> lock(mutex_);
  for (const auto& [host_function, kernel] : kernels_) {
    if (kernel.num_launches > 0) visit(context, kernel.name, kernel.num_launches);
  }
}

void KernelRegistry::reset_launch_counts() {
  const std::unique_lock<std::shared_mutex> lock(mutex_);
  for (auto& [host_function, kernel] : kernels_) kernel.num_launches = 0;
}

KernelRegistry& kernel_registry() {
  return get_leaky_singleton<KernelRegistry>();
}

}  // namespace vlmtrain::vgpu

using vlmtrain::vgpu::FatBinary;
using vlmtrain::vgpu::kernel_registry;
using vlmtrain::vgpu::set_last_error;

// The startup code that nvcc generates for each object file calls these; no header declares them.
// NOLINTBEGIN(bugprone-reserved-identifier,readability-identifier-naming)
extern "C" {

void** __cudaRegisterFatBinary(void* wrapper) {
  return reinterpret_cast<void**>(kernel_registry().add_fat_binary(wrapper));
}

void __cudaRegisterFatBinaryEnd(void**) {}

void __cudaUnregisterFatBinary(void**) {}

char __cudaInitModule(void**) {
  return 1;
}

void __cudaRegisterFunction(void** binary, const char* host_function, char*, const char* name, int, uint3*, uint3*,
                            dim3*, dim3*, int*) {
  kernel_registry().add_kernel(host_function, name, reinterpret_cast<FatBinary*>(binary));
}

void __cudaRegisterVar(void**, char* host_variable, char*, const char*, int, size_t bytes, int, int) {
  kernel_registry().add_variable(host_variable, bytes);
}

cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* host_function) {
  if (kernel_registry().find_kernel(host_function) == nullptr) return set_last_error(cudaErrorInvalidDeviceFunction);
  *kernel = static_cast<cudaKernel_t>(const_cast<void*>(host_function));
  return cudaSuccess;
}

}  // extern "C"
// NOLINTEND(bugprone-reserved-identifier,readability-identifier-naming)

cudaError_t cudaGetSymbolAddress(void** address, const void* symbol) {
  const auto variable = kernel_registry().find_variable(symbol);
  if (!variable) return set_last_error(cudaErrorInvalidSymbol);
  *address = reinterpret_cast<void*>(variable->address);
  return cudaSuccess;
}

cudaError_t cudaGetSymbolSize(size_t* bytes, const void* symbol) {
  const auto variable = kernel_registry().find_variable(symbol);
  if (!variable) return set_last_error(cudaErrorInvalidSymbol);
  *bytes = variable->bytes;
  return cudaSuccess;
}

cudaError_t cudaMemcpyToSymbol(const void* symbol, const void* from, size_t bytes, size_t offset, cudaMemcpyKind kind) {
  const auto variable = kernel_registry().find_variable(symbol);
  if (!variable) return set_last_error(cudaErrorInvalidSymbol);
  return cudaMemcpy(reinterpret_cast<void*>(variable->address + offset), from, bytes, kind);
}
