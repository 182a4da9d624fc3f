#include "vlmtrain/train/own_kernels.h"

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

/// To see what a kernel gives, and to go on without one that misbehaves: names with commas between them.
constexpr const char* kWithout = "VLMTRAIN_WITHOUT_KERNELS";

kernels::Kernel kernel_of(std::string_view name) {
  const auto all = kernels::all_kernels();
  const auto found = std::ranges::find(all, name, kernels::name_of);
  if (found != all.end()) return *found;
  throw usage_error("{} in the environment: no own kernel is called '{}'; there are {}", kWithout, name,
                    names_of(kernels::KernelSet(all.begin(), all.end())));
}

}  // namespace

std::string names_of(const kernels::KernelSet& kernels) {
  std::vector<std::string_view> names;
  std::ranges::transform(kernels, std::back_inserter(names), kernels::name_of);
  return fmt::format("{}", fmt::join(names, ", "));
}

kernels::KernelSet kernels_left_out_by_environment() {
  const char* const names = std::getenv(kWithout);
  kernels::KernelSet set;
  if (names == nullptr) return set;
  std::istringstream list(names);
  for (std::string name; std::getline(list, name, ',');) {
    std::erase(name, ' ');
    if (!name.empty()) set.insert(kernel_of(name));
  }
  return set;
}

kernels::KernelSet left_out_kernels(const engine::TrainingOptions& options) {
  kernels::KernelSet set = kernels_left_out_by_environment();
  if (options.kernels == kernels::KernelChoice::kOwn) {
    set.merge(kernels::left_out_kernels());
  } else {
    const auto all = kernels::all_kernels();
    set.insert(all.begin(), all.end());
  }
  return set;
}

void open_kernels(const engine::TrainingOptions& options, at::Device device) {
  const auto opened = kernels::open_kernels(device, left_out_kernels(options));
  if (!opened.problem.empty() && !device.is_cpu())
    spdlog::info("without own kernels, ATen's do all: {}", opened.problem);
  if (const auto named = kernels_left_out_by_environment(); !named.empty() && !device.is_cpu())
    spdlog::info("left to ATen's operations, as {} says: {}", kWithout, names_of(named));
  for (const auto& how : opened.wrong) {
    spdlog::warn(
        "an own kernel is left out, since this card does not compute it as ATen does: {}; please report it "
        "(training.kernels=aten does without them all)",
        how);
  }
}

}  // namespace vlmtrain::train
