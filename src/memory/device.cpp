// The binary does not link CUDA. Functions are looked up in the libraries that LibTorch's CUDA
// library has loaded; their results are enums with 0 for success. The allocator's limit is set
// through a virtual function, which needs only its header. PyTorch's own setting of the limit does
// not suffice: it is read at startup, but here the limit changes during a run.

#include "vlmtrain/memory/device.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <malloc.h>

#include <ATen/Context.h>
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/ops/full.h>
#include <c10/core/Allocator.h>
#include <c10/core/AllocatorConfig.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Device.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/util/Exception.h>
#include <torch/version.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <limits>
#include <map>
#include <mutex>
#include <string_view>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/base/text_format.h"
#include "vlmtrain/memory/driver.h"
#include "vlmtrain/memory/large_blocks.h"
#include "vlmtrain/memory/libtorch_env.h"

namespace vlmtrain::memory {

bool is_virtual_gpu_loaded() {
  return dlsym(RTLD_DEFAULT, "vlmtrain_vgpu_interface") != nullptr;
}

namespace {

/// Loads LibTorch's CUDA library. Returns an empty string, or the loader's error.
std::string load_cuda_library() {
  static const std::string failure = []() -> std::string {
    if (dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL) != nullptr) return "";
    const char* const reason = dlerror();
    return reason != nullptr ? reason : "unknown reason";
  }();
  return failure;
}

[[noreturn]] void throw_unusable_device(const std::string& name, const std::string& reason) {
  throw run_error("device {}: {}; to train on the CPU, set --device cpu", name, reason);
}

void check_kernel_code(const std::string& name, const VisibleGpu& gpu) {
  if (!has_kernel_code(gpu.architecture)) throw_unusable_device(name, explain_missing_kernel_code(gpu));
}

at::Device open_cuda_device(const std::string& name, int index) {
  ignore_libtorch_env_settings();
  const bool is_virtual_gpu = is_virtual_gpu_loaded();
  if (!is_virtual_gpu) {
    const DriverProbeResult probe = probe_driver();
    if (probe.state != DriverState::kUsable) {
      throw_unusable_device(name,
                            probe.reason.empty() ? "no NVIDIA driver is installed (no libcuda.so.1)" : probe.reason);
    }
    if (index >= std::ssize(probe.gpus)) {
      throw_unusable_device(name, describe_usable_gpus(std::ssize(probe.gpus)) + "; check nvidia-smi");
    }
    check_kernel_code(name, probe.gpus[static_cast<size_t>(index)]);
  }
  if (const std::string failure = load_cuda_library(); !failure.empty()) {
    throw run_error(
        "device {}: LibTorch's CUDA library cannot be loaded: {}; install LibTorch with the CUDA libraries that it "
        "needs (pip install --force-reinstall torch=={}, or scripts/setup.sh for a local build; CPU-only torch has "
        "none), or use --device cpu",
        name, failure, TORCH_VERSION);
  }
  const c10::DeviceIndex count = at::detail::getCUDAHooks().deviceCount();
  if (index >= count) {
    throw_unusable_device(name, describe_usable_gpus(count) + "; check nvidia-smi");
  }
  at::globalContext().lazyInitDevice(at::kCUDA);
  // The planner cannot predict cuDNN's choice of algorithms, so convolutions use ATen's kernels.
  at::globalContext().setUserEnabledCuDNN(false);
  const at::Device device(at::kCUDA, static_cast<c10::DeviceIndex>(index));
  // The properties of the virtual GPU are unknown before CUDA is initialized.
  if (is_virtual_gpu)
    check_kernel_code(name, {.name = get_device_properties(device).name, .architecture = get_architecture(device)});
  cache_total_memory(device);
  // The environment's limit applies even if the run sets none.
  if (std::getenv(kReservedLimitVariable) != nullptr) {
    limit_reserved_bytes(device, std::numeric_limits<int64_t>::max());
  }
  return device;
}

/// Returns CUDA unless the machine has no GPU or hides it on purpose.
at::Device open_default_device() {
  if (!is_virtual_gpu_loaded()) {
    const DriverProbeResult probe = probe_driver();
    if (probe.state == DriverState::kAbsent || probe.state == DriverState::kHidden) {
      if (!probe.reason.empty()) spdlog::warn("the run uses the CPU: {}", probe.reason);
      return at::kCPU;
    }
  }
  return open_cuda_device("auto", 0);
}

c10::DeviceAllocator* get_device_allocator(at::Device device) {
  return device.is_cpu() ? nullptr : c10::getDeviceAllocator(device.type());
}

}  // namespace

std::optional<int> parse_cuda_index(const std::string& name) {
  if (name == "cuda") return 0;
  const int64_t index = parse_int_after_prefix("cuda:", name).value_or(-1);
  if (index < 0 || index > 127) return std::nullopt;  // c10::DeviceIndex is int8_t
  return static_cast<int>(index);
}

at::Device open_device(const std::string& name) {
  if (name == "auto") return open_default_device();
  if (name == "cpu") return at::kCPU;
  const auto index = parse_cuda_index(name);
  if (!index) throw usage_error("--device {}: unknown device; must be auto, cpu, cuda or cuda:N", name);
  return open_cuda_device(name, *index);
}

DeviceMemoryStats get_device_memory_stats(at::Device device) {
  auto* const allocator = get_device_allocator(device);
  if (allocator == nullptr) return {};
  const auto statistics = allocator->getDeviceStats(device.index());
  constexpr auto kAggregate = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  return {.allocated_peak_bytes = statistics.allocated_bytes[kAggregate].peak,
          .reserved_peak_bytes = statistics.reserved_bytes[kAggregate].peak,
          .allocated_bytes = statistics.allocated_bytes[kAggregate].current,
          .reserved_bytes = statistics.reserved_bytes[kAggregate].current};
}

void reset_peak_memory_stats(at::Device device) {
  if (auto* const allocator = get_device_allocator(device)) allocator->resetPeakStats(device.index());
}

int64_t get_num_alloc_retries(at::Device device) {
  auto* const allocator = get_device_allocator(device);
  return allocator == nullptr ? 0 : allocator->getDeviceStats(device.index()).num_alloc_retries;
}

void empty_cache(at::Device device) {
  auto* const allocator = get_device_allocator(device);
  if (allocator == nullptr) {
    release_large_block_cache();
    malloc_trim(0);
    return;
  }
  // LibTorch declares this function only together with CUDA's headers.
  using ClearWorkspacesFunction = void (*)();
  static const auto clear_cublas_workspaces =
      reinterpret_cast<ClearWorkspacesFunction>(dlsym(RTLD_DEFAULT, "_ZN2at4cuda21clearCublasWorkspacesEv"));
  if (clear_cublas_workspaces != nullptr) clear_cublas_workspaces();
  allocator->emptyCache();
}

void set_expandable_segments(bool expandable) {
  c10::CachingAllocator::setAllocatorSettings(expandable ? "expandable_segments:True" : "expandable_segments:False");
}

namespace {

template <class Function>
Function* load_symbol(void* library, const char* name) {
  auto* const function = reinterpret_cast<Function*>(dlsym(library, name));
  if (function == nullptr) throw run_error("device cuda: the CUDA libraries have no function {}", name);
  return function;
}

int get_cuda_device_attribute(int attribute, int device) {
  static auto* const cuda_device_get_attribute =
      load_symbol<int(int*, int, int)>(RTLD_DEFAULT, "cudaDeviceGetAttribute");
  int value = 0;
  if (cuda_device_get_attribute(&value, attribute, device) != 0)
    throw run_error("device cuda:{}: the CUDA runtime does not report attribute {}", device, attribute);
  return value;
}

std::string get_device_name(int device) {
  void* const driver = dlopen("libcuda.so.1", RTLD_NOW);
  if (driver == nullptr) throw run_error("device cuda: the driver's libcuda.so.1 cannot be loaded: {}", dlerror());
  std::array<char, 256> name{};
  const int error = load_symbol<int(char*, int, int)>(driver, "cuDeviceGetName")(name.data(), name.size(), device);
  if (error != 0) throw run_error("device cuda:{}: the driver does not report its name (CUDA error {})", device, error);
  return name.data();
}

/// Returns the device's index, which c10 stores as a signed char, as an int.
int get_device_index(at::Device device) {
  return static_cast<unsigned char>(device.index());
}

struct CudaMemoryInfo {
  size_t free_bytes = 0;
  size_t total_bytes = 0;
};

CudaMemoryInfo query_cuda_memory(int device) {
  static auto* const cuda_set_device = load_symbol<int(int)>(RTLD_DEFAULT, "cudaSetDevice");
  static auto* const cuda_mem_get_info = load_symbol<int(size_t*, size_t*)>(RTLD_DEFAULT, "cudaMemGetInfo");
  CudaMemoryInfo memory;
  const int set_device_error = cuda_set_device(device);
  const int error = cuda_mem_get_info(&memory.free_bytes, &memory.total_bytes);
  if (set_device_error != 0 || error != 0) {
    throw run_error("device cuda:{}: its memory cannot be queried (CUDA error {})", device,
                    set_device_error != 0 ? set_device_error : error);
  }
  return memory;
}

}  // namespace

int64_t get_free_device_bytes(at::Device device) {
  return static_cast<int64_t>(query_cuda_memory(device.index()).free_bytes);
}

std::string get_pci_bus_id(at::Device device) {
  static auto* const cuda_device_get_pci_bus_id =
      load_symbol<int(char*, int, int)>(RTLD_DEFAULT, "cudaDeviceGetPCIBusId");
  const int index = get_device_index(device);
  std::array<char, 32> id{};
  if (cuda_device_get_pci_bus_id(id.data(), static_cast<int>(id.size()), index) != 0) {
    throw run_error("device cuda:{}: the CUDA runtime does not report its PCI bus id", index);
  }
  return id.data();
}

int get_architecture(at::Device device) {
  // cudaDevAttrComputeCapabilityMajor and …Minor.
  constexpr int kCapabilityMajorAttribute = 75;
  constexpr int kCapabilityMinorAttribute = 76;
  return 10 * get_cuda_device_attribute(kCapabilityMajorAttribute, device.index()) +
         get_cuda_device_attribute(kCapabilityMinorAttribute, device.index());
}

DeviceProperties get_device_properties(at::Device device) {
  constexpr int kMultiprocessorCountAttribute = 16;  // cudaDevAttrMultiProcessorCount
  const int index = get_device_index(device);
  const CudaMemoryInfo memory = query_cuda_memory(index);
  return {.name = get_device_name(index),
          .architecture = get_architecture(device),
          .num_multiprocessors = get_cuda_device_attribute(kMultiprocessorCountAttribute, index),
          .total_bytes = static_cast<int64_t>(memory.total_bytes),
          .free_bytes = static_cast<int64_t>(memory.free_bytes)};
}

void release_pinned_memory(at::Device device) {
  if (!device.is_cpu()) at::getHostAllocator(device.type())->empty_cache();
}

std::optional<std::string> find_device_failure(at::Device device) {
  try {
    at::full({1 << 20}, /*fill_value=*/1, at::TensorOptions(at::kByte).device(device)).sum().item();
    return std::nullopt;
  } catch (const c10::Error& error) {
    return get_first_line(error.what());
  }
}

namespace {

/// Returns cudaDeviceProp::totalGlobalMem, of which PyTorch's allocator takes a fraction as its
/// limit. The allocator reads that size once at startup. A virtual GPU may report a larger size
/// later, so the first value is cached here as well.
double get_total_global_mem(int device) {
  static std::mutex mutex;
  static std::map<int, double> total_bytes_by_device;
  const std::lock_guard<std::mutex> lock(mutex);
  if (const auto it = total_bytes_by_device.find(device); it != total_bytes_by_device.end()) return it->second;
  using GetPropertiesFunction = cudaError_t (*)(cudaDeviceProp*, int);
  const auto cuda_get_device_properties =
      reinterpret_cast<GetPropertiesFunction>(dlsym(RTLD_DEFAULT, "cudaGetDeviceProperties"));
  cudaDeviceProp properties{};
  if (cuda_get_device_properties == nullptr || cuda_get_device_properties(&properties, device) != cudaSuccess) {
    throw run_error("device cuda:{}: the CUDA runtime does not report its properties", device);
  }
  return total_bytes_by_device[device] = static_cast<double>(properties.totalGlobalMem);
}

/// Returns the limit that kReservedLimitVariable sets, or the maximum of int64_t if it is not set.
int64_t read_reserved_limit_env() {
  constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();
  const char* const text = std::getenv(kReservedLimitVariable);
  if (text == nullptr) return kNoLimit;
  const std::string_view digits = text;
  int64_t bytes = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), bytes);
  if (error == std::errc() && end == digits.data() + digits.size() && bytes > 0) return bytes;
  throw usage_error("{}={}: must be a positive number of bytes", kReservedLimitVariable, text);
}

}  // namespace

void cache_total_memory(at::Device device) {
  if (!device.is_cpu()) get_total_global_mem(device.index());
}

void limit_reserved_bytes(at::Device device, int64_t bytes) {
  if (device.is_cpu()) return;
  bytes = std::min(bytes, read_reserved_limit_env());
  const double memory_fraction =
      std::clamp(static_cast<double>(bytes) / get_total_global_mem(device.index()), 0.0, 1.0);
  auto* const allocator = c10::GetAllocator(c10::DeviceType::CUDA);
  static_cast<c10::cuda::CUDACachingAllocator::CUDAAllocator*>(allocator)->setMemoryFraction(memory_fraction,
                                                                                             device.index());
}

}  // namespace vlmtrain::memory
