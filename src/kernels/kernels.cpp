#include "vlmtrain/kernels/kernels.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <utility>

#include "kernels/launch.h"
#include "kernels/trial.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/plugin.h"
#include "vlmtrain/vgpu/counters.h"

namespace vlmtrain::kernels {

namespace {

constexpr const char* kLibrary = "libvlmtrain_kernels.so";
/// For tests: a library of kernels for the CPU, the emulated ones.
constexpr const char* kEmulation = "VLMTRAIN_EMULATED_KERNELS";

struct Named {
  Kernel kernel;
  std::string_view name;
};
constexpr std::array kNamed{Named{Kernel::kGate, "gate"},      Named{Kernel::kActivation, "activation"},
                            Named{Kernel::kRotate, "rotate"},  Named{Kernel::kNormRotate, "norm_rotate"},
                            Named{Kernel::kNorm, "norm"},      Named{Kernel::kCrossEntropy, "cross_entropy"},
                            Named{Kernel::kAdamW, "adamw"},    Named{Kernel::kNf4, "nf4"},
                            Named{Kernel::kInt8, "int8"},      Named{Kernel::kPatches, "patches"},
                            Named{Kernel::kDropout, "dropout"}};
constexpr std::array kAll{Kernel::kGate, Kernel::kActivation,   Kernel::kRotate, Kernel::kNormRotate,
                          Kernel::kNorm, Kernel::kCrossEntropy, Kernel::kAdamW,  Kernel::kNf4,
                          Kernel::kInt8, Kernel::kPatches,      Kernel::kDropout};
static_assert(kNamed.size() == kAll.size());

/// What a process has opened. Threads ask for it all the time, and it changes only where a device is opened.
struct State {
  const Launchers* launchers = nullptr;
  at::DeviceType device = at::kCPU;
  KernelSet wrong, left_out;
  std::array<bool, kAll.size()> is_used{};

  void settle() {
    for (const Kernel kernel : kAll)
      is_used[static_cast<size_t>(kernel)] =
          launchers != nullptr && !wrong.contains(kernel) && !left_out.contains(kernel);
  }
};

State& state() {
  static State instance;
  return instance;
}

const Launchers* launchers_of(const Plugin& plugin) {
  return reinterpret_cast<GetLaunchers*>(plugin.functions.front())();
}

Plugin load_library(const char* name) {
  return load_plugin(name, kKernelsVersionOf, kKernelsVersion, {kGetLaunchers});
}

bool is_emulated() {
  return std::getenv(kEmulation) != nullptr;
}

}  // namespace

std::span<const Kernel> all_kernels() {
  return kAll;
}

std::string_view name_of(Kernel kernel) {
  return std::ranges::find(kNamed, kernel, &Named::kernel)->name;
}

Kernel kernel_of(std::string_view name) {
  const auto* const found = std::ranges::find(kNamed, name, &Named::name);
  if (found == kNamed.end()) throw InternalError("no kernel is called " + std::string(name));
  return found->kernel;
}

OpenedKernels open_kernels(at::Device device, const KernelSet& left_out) {
  if (device.is_cpu() && !is_emulated()) return {.problem = "the CPU has none"};
  static const Plugin plugin = load_library(device.is_cpu() ? std::getenv(kEmulation) : kLibrary);
  if (plugin.functions.empty()) return {.problem = plugin.problem};

  State& opened = state();
  const bool is_first = opened.launchers == nullptr;
  opened.launchers = launchers_of(plugin);
  opened.device = device.type();
  opened.left_out = left_out;
  opened.settle();
  OpenedKernels result;
  if (!is_first || vgpu::attached() != nullptr) return result;
  for (auto& [kernel, how] : failed_trials(device)) {
    opened.wrong.insert(kernel);
    result.wrong.push_back(std::move(how));
  }
  opened.settle();
  return result;
}

std::string library_problem() {
  const Plugin plugin = load_library(kLibrary);
  return plugin.functions.empty() ? plugin.problem : "";
}

KernelSet left_out_kernels() {
  KernelSet all = state().wrong;
  all.insert(state().left_out.begin(), state().left_out.end());
  return all;
}

bool has(Kernel kernel, const at::Tensor& tensor) {
  const State& opened = state();
  return opened.is_used[static_cast<size_t>(kernel)] && tensor.device().type() == opened.device &&
         tensor.scalar_type() != at::kDouble;
}

const Launchers& launchers() {
  return *state().launchers;
}

}  // namespace vlmtrain::kernels
