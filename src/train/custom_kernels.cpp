#include "vlmtrain/train/custom_kernels.h"

#include <c10/core/Device.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/base/option_keys.h"

namespace vlmtrain::train {

namespace {

/// Environment variable with the names of kernels that ATen's operations replace, separated by
/// commas. It allows measuring the effect of a kernel, and training without a kernel that is wrong.
constexpr const char* kDisabledKernelsEnvVar = "VLMTRAIN_WITHOUT_KERNELS";

kernels::Kernel find_kernel(std::string_view name) {
  if (const auto kernel = kernels::parse_kernel(name)) return *kernel;
  const auto all = kernels::list_kernels();
  throw usage_error("{}: '{}' is not a custom kernel; the custom kernels are {}", kDisabledKernelsEnvVar, name,
                    join_kernel_names(kernels::KernelSet(all.begin(), all.end())));
}

}  // namespace

std::string join_kernel_names(const kernels::KernelSet& kernels) {
  std::vector<std::string_view> names;
  std::ranges::transform(kernels, std::back_inserter(names), kernels::to_string);
  return fmt::format("{}", fmt::join(names, ", "));
}

kernels::KernelSet read_disabled_kernels_variable() {
  const char* const names = std::getenv(kDisabledKernelsEnvVar);
  kernels::KernelSet disabled_kernels;
  if (names == nullptr) return disabled_kernels;
  std::istringstream list(names);
  for (std::string name; std::getline(list, name, ',');) {
    std::erase(name, ' ');
    if (!name.empty()) disabled_kernels.insert(find_kernel(name));
  }
  return disabled_kernels;
}

kernels::KernelSet find_disabled_kernels(const engine::TrainingOptions& options) {
  kernels::KernelSet disabled_kernels = read_disabled_kernels_variable();
  if (options.kernels == kernels::KernelBackend::kCustom) {
    disabled_kernels.merge(kernels::get_disabled_kernels());
  } else {
    const auto all = kernels::list_kernels();
    disabled_kernels.insert(all.begin(), all.end());
  }
  return disabled_kernels;
}

void load_custom_kernels(const engine::TrainingOptions& options, at::Device device) {
  const auto load_result = kernels::open_kernels(device, find_disabled_kernels(options));
  if (!load_result.unavailable_reason.empty() && !device.is_cpu())
    spdlog::info("custom kernels are not available, ATen's are used: {}", load_result.unavailable_reason);
  if (const auto disabled_kernels = read_disabled_kernels_variable(); !disabled_kernels.empty() && !device.is_cpu())
    spdlog::info("{} replaces these custom kernels with ATen's: {}", kDisabledKernelsEnvVar,
                 join_kernel_names(disabled_kernels));
  for (const auto& problem : load_result.failure_messages) {
    spdlog::warn(
        "a custom kernel is disabled, since its result on this GPU differs from ATen's: {}; please report it ({}=aten "
        "disables all custom kernels)",
        problem, keys::training::kKernels);
  }
}

}  // namespace vlmtrain::train
