#include "vlmtrain/kernels/kernels.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <optional>
#include <utility>

#include "kernels/launch.h"
#include "kernels/self_test.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/plugin.h"
#include "vlmtrain/vgpu/interface.h"

namespace vlmtrain::kernels {

namespace {

constexpr const char* kLibraryName = "libvlmtrain_kernels.so";
/// Environment variable with the path of a library of emulated kernels for the CPU, for tests.
constexpr const char* kEmulatedLibraryVariable = "VLMTRAIN_EMULATED_KERNELS";

struct KernelName {
  Kernel kernel;
  std::string_view name;
  std::string_view alias = {};  ///< former name, accepted in VLMTRAIN_WITHOUT_KERNELS and environment.json
};
constexpr std::array kKernelNames{KernelName{Kernel::kGatedActivation, "gated_activation", "gate"},
                                  KernelName{Kernel::kActivation, "activation"},
                                  KernelName{Kernel::kRope, "rope", "rotate"},
                                  KernelName{Kernel::kQkNormRope, "qk_norm_rope", "norm_rotate"},
                                  KernelName{Kernel::kNorm, "norm"},
                                  KernelName{Kernel::kCrossEntropy, "cross_entropy"},
                                  KernelName{Kernel::kAdamW, "adamw"},
                                  KernelName{Kernel::kNf4, "nf4"},
                                  KernelName{Kernel::kInt8, "int8"},
                                  KernelName{Kernel::kPatchify, "patchify", "patches"},
                                  KernelName{Kernel::kDropout, "dropout"}};
constexpr std::array kAllKernels{Kernel::kGatedActivation, Kernel::kActivation, Kernel::kRope,
                                 Kernel::kQkNormRope,      Kernel::kNorm,       Kernel::kCrossEntropy,
                                 Kernel::kAdamW,           Kernel::kNf4,        Kernel::kInt8,
                                 Kernel::kPatchify,        Kernel::kDropout};
static_assert(kKernelNames.size() == kAllKernels.size());

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
  return load_plugin(name, kKernelsVersionSymbol, kKernelsVersion, {kGetLaunchersSymbol});
}

bool uses_emulated_kernels() {
  return std::getenv(kEmulatedLibraryVariable) != nullptr;
}

}  // namespace

std::span<const Kernel> list_kernels() {
  return kAllKernels;
}

std::string_view to_string(Kernel kernel) {
  return std::ranges::find(kKernelNames, kernel, &KernelName::kernel)->name;
}

std::optional<Kernel> parse_kernel(std::string_view name) {
  const auto* const it = std::ranges::find_if(kKernelNames, [name](const KernelName& entry) {
    return !name.empty() && (entry.name == name || entry.alias == name);
  });
  return it == kKernelNames.end() ? std::nullopt : std::optional(it->kernel);
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
