#include "vlmtrain/kernels/kernels.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <optional>
#include <utility>

#include "kernels/launch.h"
#include "kernels/self_test.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/process.h"
#include "vlmtrain/vgpu/interface.h"

namespace vlmtrain::kernels {

namespace {

constexpr const char* kLibraryName = "libvlmtrain_kernels.so";
/// Environment variable with the path of a library of emulated kernels for the CPU, for tests.
constexpr const char* kEmulatedLibraryVariable = "VLMTRAIN_EMULATED_KERNELS";

/// Names in the order of Kernel. The former name is accepted in VLMTRAIN_WITHOUT_KERNELS and
/// environment.json.
struct KernelName {
  std::string_view name, former_name;
};
constexpr std::array kKernelNames{
#define VLMTRAIN_NAME(enumerator, name, former_name) KernelName{#name, former_name},
    VLMTRAIN_KERNEL_TABLE(VLMTRAIN_NAME, VLMTRAIN_SKIP)
#undef VLMTRAIN_NAME
};
constexpr std::array kAllKernels{
#define VLMTRAIN_KERNEL(enumerator, name, former_name) Kernel::enumerator,
    VLMTRAIN_KERNEL_TABLE(VLMTRAIN_KERNEL, VLMTRAIN_SKIP)
#undef VLMTRAIN_KERNEL
};

/// The kernels that open_kernels() has opened in this process. Only open_kernels() changes it; any
/// thread may read it.
struct KernelRegistry {
  const Launchers* launchers = nullptr;
  at::DeviceType device = at::kCPU;
  KernelSet failed_kernels, disabled;
  std::array<bool, kAllKernels.size()> is_enabled{};  // by Kernel

  void update_enabled_kernels() {
    for (const Kernel kernel : kAllKernels)
      is_enabled[static_cast<size_t>(kernel)] =
          launchers != nullptr && !failed_kernels.contains(kernel) && !disabled.contains(kernel);
  }
};

KernelRegistry& get_kernel_registry() {
  static KernelRegistry instance;
  return instance;
}

const Launchers* get_launchers(const Plugin& plugin) {
  return reinterpret_cast<GetLaunchersFunction*>(plugin.functions.front())();
}

Plugin load_kernel_library(const char* name) {
  return load_plugin(name, kKernelsVersionSymbol, VLMTRAIN_KERNELS_VERSION, {kGetLaunchersSymbol});
}

bool uses_emulated_kernels() {
  return std::getenv(kEmulatedLibraryVariable) != nullptr;
}

}  // namespace

std::span<const Kernel> list_kernels() {
  return kAllKernels;
}

std::string_view to_string(Kernel kernel) {
  return kKernelNames.at(static_cast<size_t>(kernel)).name;
}

std::optional<Kernel> parse_kernel(std::string_view name) {
  for (const Kernel kernel : kAllKernels) {
    const KernelName& names = kKernelNames[static_cast<size_t>(kernel)];
    if (!name.empty() && (names.name == name || names.former_name == name)) return kernel;
  }
  return std::nullopt;
}

Kernel get_kernel(std::string_view name) {
  if (const auto kernel = parse_kernel(name)) return *kernel;
  throw InternalError("unknown kernel " + std::string(name));
}

OpenKernelsResult open_kernels(at::Device device, const KernelSet& disabled) {
  if (device.is_cpu() && !uses_emulated_kernels()) return {.unavailable_reason = "the CPU has no custom kernels"};
  static const Plugin plugin =
      load_kernel_library(device.is_cpu() ? std::getenv(kEmulatedLibraryVariable) : kLibraryName);
  if (plugin.functions.empty()) return {.unavailable_reason = plugin.problem};

  KernelRegistry& current = get_kernel_registry();
  const bool is_first_open = current.launchers == nullptr;
  current.launchers = get_launchers(plugin);
  current.device = device.type();
  current.disabled = disabled;
  current.update_enabled_kernels();
  OpenKernelsResult result;
  // Tensors of a virtual GPU have no values to compare.
  if (!is_first_open || vgpu::find_virtual_gpu_interface() != nullptr) return result;
  for (auto& [kernel, description] : find_failed_kernel_tests(device)) {
    current.failed_kernels.insert(kernel);
    result.failure_messages.push_back(std::move(description));
  }
  current.update_enabled_kernels();
  return result;
}

std::string find_kernel_library_error() {
  const Plugin plugin = load_kernel_library(kLibraryName);
  return plugin.functions.empty() ? plugin.problem : "";
}

KernelSet get_disabled_kernels() {
  KernelSet disabled_kernels = get_kernel_registry().failed_kernels;
  disabled_kernels.insert(get_kernel_registry().disabled.begin(), get_kernel_registry().disabled.end());
  return disabled_kernels;
}

bool is_available(Kernel kernel, const at::Tensor& tensor) {
  const KernelRegistry& current = get_kernel_registry();
  return current.is_enabled[static_cast<size_t>(kernel)] && tensor.device().type() == current.device &&
         tensor.scalar_type() != at::kDouble;  // kernels compute in fp32
}

const Launchers& launchers() {
  return *get_kernel_registry().launchers;
}

}  // namespace vlmtrain::kernels
