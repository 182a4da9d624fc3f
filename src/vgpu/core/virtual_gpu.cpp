#include "vgpu/core/virtual_gpu.h"

#include <charconv>
#include <cstdlib>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

#include "vgpu/core/instrumentation.h"

namespace vlmtrain::vgpu {

namespace {

std::string_view get_env(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? std::string_view() : std::string_view(value);
}

/// Returns `default_value` if the variable is not set. Returns nothing, after a report on stderr,
/// if it is not a number of at least 0.
template <class Number>
std::optional<Number> parse_number_env(const char* name, Number default_value, const char* unit) {
  const std::string_view text = get_env(name);
  if (text.empty()) return default_value;
  Number value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc() && end == text.data() + text.size() && value >= 0) return value;
  print_stderr_line({name, "=", text, " is not a number of ", unit, "; no device is created"});
  return std::nullopt;
}

std::optional<uint64_t> parse_bytes_env(const char* name, uint64_t default_value) {
  return parse_number_env(name, default_value, "bytes");
}

std::optional<ModuleLoadCost> read_module_load_cost() {
  const auto context_growth_bytes = parse_bytes_env("VLMTRAIN_VGPU_MODULE_BYTES", 0);
  const auto load_seconds = parse_number_env("VLMTRAIN_VGPU_MODULE_SECONDS", 0.0, "seconds");
  if (!context_growth_bytes || !load_seconds) return std::nullopt;
  return ModuleLoadCost{*context_growth_bytes, *load_seconds};
}

const memory::GpuSpec* find_configured_gpu() {
  const std::string_view name = get_env("VLMTRAIN_VGPU_NAME");
  const memory::GpuSpec* const gpu = memory::find_gpu_spec(name.empty() ? "h100" : name);
  if (gpu != nullptr) return gpu;
  std::string names;
  for (const auto& listed_gpu : memory::list_gpu_specs()) names.append(" ").append(listed_gpu.name);
  print_stderr_line({"VLMTRAIN_VGPU_NAME=", name, " is unknown; no device is created; the known GPUs are", names});
  return nullptr;
}

std::optional<VirtualGpu> read_gpu_environment() {
  const memory::GpuSpec* const base_gpu = find_configured_gpu();
  if (base_gpu == nullptr) return std::nullopt;
  const auto memory_bytes = parse_bytes_env("VLMTRAIN_VGPU_BYTES", static_cast<uint64_t>(base_gpu->memory_bytes));
  const auto reported_bytes = parse_bytes_env("VLMTRAIN_VGPU_REPORTED_BYTES", memory_bytes.value_or(0));
  const auto used_bytes = parse_bytes_env("VLMTRAIN_VGPU_USED_BYTES", 0);
  const auto num_multiprocessors =
      parse_number_env("VLMTRAIN_VGPU_MULTIPROCESSORS", base_gpu->num_multiprocessors, "multiprocessors");
  const auto architecture = parse_number_env("VLMTRAIN_VGPU_ARCHITECTURE", base_gpu->architecture, "an architecture");
  const auto module_load_cost = read_module_load_cost();
  if (!memory_bytes || !reported_bytes || !used_bytes || !num_multiprocessors || !architecture || !module_load_cost) {
    return std::nullopt;
  }
  memory::GpuSpec gpu = memory::scale_multiprocessors(*base_gpu, *num_multiprocessors);
  gpu.architecture = *architecture;
  memory::ArchitectureLimits limits = memory::get_architecture_limits(*architecture);
  limits.compute_capability = *architecture;
  return VirtualGpu{gpu, limits, *memory_bytes, *reported_bytes, *used_bytes, *module_load_cost};
}

}  // namespace

const VirtualGpu* virtual_gpu() {
  static const std::optional<VirtualGpu> configured_gpu = read_gpu_environment();
  return configured_gpu ? &*configured_gpu : nullptr;
}

// Values without a field are equal on all architectures of the table (CUDA C++ Programming Guide,
// "Technical Specifications per Compute Capability").
int get_device_attribute(CUdevice_attribute attribute) {
  const VirtualGpu& device = *virtual_gpu();
  const auto& architecture = device.architecture;
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X:
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y:
      return 1024;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z:
      return 64;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X:
    case CU_DEVICE_ATTRIBUTE_MAX_PITCH:
      return std::numeric_limits<int>::max();
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y:
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z:
      return 65535;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK:
      return 48 << 10;
    case CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY:
    case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK:
    case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR:
      return 64 << 10;
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE:
      return 32;
    case CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT:
      return 512;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
      return device.gpu.num_multiprocessors;
    case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE:
      return static_cast<int>(device.gpu.l2_cache_bytes);
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR:
      return architecture.max_threads_per_multiprocessor;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR:
      return architecture.max_blocks_per_multiprocessor;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR:
      return static_cast<int>(architecture.shared_bytes_per_multiprocessor);
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
      return static_cast<int>(architecture.max_shared_bytes_per_block);
    case CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK:
      return architecture.compute_capability >= 80 ? 1024 : 0;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
      return architecture.compute_capability / 10;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
      return architecture.compute_capability % 10;
    case CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH:
      return architecture.compute_capability >= 90 ? 1 : 0;
    case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT:
      return 3;
    case CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY:
    case CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS:
    case CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS:
    case CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH:
    case CU_DEVICE_ATTRIBUTE_GLOBAL_L1_CACHE_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_LOCAL_L1_CACHE_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY:
    case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID:
    case CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
      return 1;
    default:
      return 0;
  }
}

}  // namespace vlmtrain::vgpu
