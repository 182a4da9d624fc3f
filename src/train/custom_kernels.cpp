#include "vlmtrain/train/custom_kernels.h"

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

namespace vlmtrain::train {

namespace {

/// Environment variable with the names of kernels that ATen's operations replace, separated by
/// commas. It allows measuring the effect of a kernel, and training without a kernel that is wrong.
constexpr const char* kDisabledKernelsVariable = "VLMTRAIN_WITHOUT_KERNELS";

kernels::Kernel find_kernel(std::string_view name) {
  if (const auto kernel = kernels::parse_kernel(name)) return *kernel;
  const auto all = kernels::all_kernels();
  throw usage_error("{}: '{}' is not a custom kernel; the custom kernels are {}", kDisabledKernelsVariable, name,
                    join_kernel_names(kernels::KernelSet(all.begin(), all.end())));
}

}  // namespace

std::string join_kernel_names(const kernels::KernelSet& kernels) {
  std::vector<std::string_view> names;
  std::ranges::transform(kernels, std::back_inserter(names), kernels::to_string);
  return fmt::format("{}", fmt::join(names, ", "));
}

kernels::KernelSet find_kernels_disabled_by_environment() {
  const char* const names = std::getenv(kDisabledKernelsVariable);
  kernels::KernelSet disabled;
  if (names == nullptr) return disabled;
  std::istringstream list(names);
  for (std::string name; std::getline(list, name, ',');) {
    std::erase(name, ' ');
    if (!name.empty()) disabled.insert(find_kernel(name));
  }
  return disabled;
}

kernels::KernelSet find_disabled_kernels(const engine::TrainingOptions& options) {
  kernels::KernelSet disabled = find_kernels_disabled_by_environment();
  if (options.kernels == kernels::KernelBackend::kCustom) {
    disabled.merge(kernels::disabled_kernels());
  } else {
    const auto all = kernels::all_kernels();
    disabled.insert(all.begin(), all.end());
  }
  return disabled;
}

void load_kernels(const engine::TrainingOptions& options, at::Device device) {
  const auto load_result = kernels::open_kernels(device, find_disabled_kernels(options));
  if (!load_result.problem.empty() && !device.is_cpu())
    spdlog::info("custom kernels are not available, ATen's are used: {}", load_result.problem);
  if (const auto disabled = find_kernels_disabled_by_environment(); !disabled.empty() && !device.is_cpu())
    spdlog::info("{} replaces these custom kernels with ATen's: {}", kDisabledKernelsVariable,
                 join_kernel_names(disabled));
  for (const auto& problem : load_result.failure_messages) {
    spdlog::warn(
        "a custom kernel is disabled, since its result on this GPU differs from ATen's: {}; please report it "
        "(training.kernels=aten disables all custom kernels)",
        problem);
  }
}

}  // namespace vlmtrain::train
