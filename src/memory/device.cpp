#include "vlmtrain/memory/device.h"

#include <dlfcn.h>
#include <malloc.h>

#include <ATen/Context.h>
#include <c10/core/AllocatorConfig.h>
#include <c10/core/CachingDeviceAllocator.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "vlmtrain/base/error.h"

namespace vlmtrain::memory {

namespace {

/// Empty where the library is loaded, else why it is not.
std::string load_cuda_library() {
  static const std::string failure = []() -> std::string {
    if (dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL) != nullptr) return "";
    const char* const reason = dlerror();
    return reason != nullptr ? reason : "unknown reason";
  }();
  return failure;
}

int64_t gpu_count() {
  return load_cuda_library().empty() ? static_cast<int64_t>(at::detail::getCUDAHooks().deviceCount()) : 0;
}

/// Without the driver's library there is no GPU, and LibTorch's half gigabyte need not be loaded to find that out.
bool has_driver() {
  return dlopen("libcuda.so.1", RTLD_LAZY) != nullptr;
}

at::Device open_cuda(at::Device device) {
  if (const std::string failure = load_cuda_library(); !failure.empty()) {
    throw run_error(
        "device cuda: LibTorch's CUDA library cannot be loaded: {}; run scripts/setup.sh, or use "
        "--device cpu",
        failure);
  }
  const int64_t count = gpu_count();
  const int64_t index = device.index();
  if (index >= count) {
    throw run_error("device cuda:{}: {} usable; check nvidia-smi, or use --device cpu", index,
                    count == 0 ? "no GPU is" : fmt::format("only {} GPUs are", count));
  }
  at::globalContext().lazyInitDevice(at::kCUDA);
  return device;
}

c10::DeviceAllocator* allocator_of(at::Device device) {
  return device.is_cpu() ? nullptr : c10::getDeviceAllocator(device.type());
}

}  // namespace

at::Device open_device(const std::string& name) {
  if (name == "auto")
    return has_driver() && gpu_count() > 0 ? open_cuda(at::Device(at::kCUDA, 0)) : at::Device(at::kCPU);
  if (name == "cpu") return at::kCPU;
  if (name == "cuda") return open_cuda(at::Device(at::kCUDA, 0));
  int index = -1;
  if (name.starts_with("cuda:")) {
    const auto [end, error] = std::from_chars(name.data() + 5, name.data() + name.size(), index);
    if (error != std::errc() || end != name.data() + name.size()) index = -1;
  }
  if (index < 0 || index > 127) throw usage_error("device {}: unknown; write auto, cpu, cuda or cuda:N", name);
  return open_cuda(at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(index)));
}

DeviceMemory device_memory(at::Device device) {
  auto* const allocator = allocator_of(device);
  if (allocator == nullptr) return {};
  const auto statistics = allocator->getDeviceStats(device.index());
  constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  return {.allocated_peak_bytes = statistics.allocated_bytes[kAll].peak,
          .reserved_peak_bytes = statistics.reserved_bytes[kAll].peak,
          .allocated_bytes = statistics.allocated_bytes[kAll].current,
          .reserved_bytes = statistics.reserved_bytes[kAll].current};
}

void reset_peaks(at::Device device) {
  if (auto* const allocator = allocator_of(device)) allocator->resetPeakStats(device.index());
}

int64_t allocation_retries(at::Device device) {
  auto* const allocator = allocator_of(device);
  return allocator == nullptr ? 0 : allocator->getDeviceStats(device.index()).num_alloc_retries;
}

void release_unused(at::Device device) {
  auto* const allocator = allocator_of(device);
  if (allocator == nullptr) {
    malloc_trim(0);
    return;
  }
  // LibTorch's own function, which has no entry without CUDA's headers.
  using ClearWorkspaces = void (*)();
  static const auto clear_cublas_workspaces =
      reinterpret_cast<ClearWorkspaces>(dlsym(RTLD_DEFAULT, "_ZN2at4cuda21clearCublasWorkspacesEv"));
  if (clear_cublas_workspaces != nullptr) clear_cublas_workspaces();
  allocator->emptyCache();
}

void set_expandable_segments(bool expandable) {
  c10::CachingAllocator::setAllocatorSettings(expandable ? "expandable_segments:True" : "expandable_segments:False");
}

}  // namespace vlmtrain::memory
