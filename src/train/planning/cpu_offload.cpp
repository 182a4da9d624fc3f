#include "train/planning/cpu_offload.h"

#include <cstdlib>
#include <string_view>

#include "vlmtrain/base/log.h"
#include "vlmtrain/base/option_keys.h"

namespace vlmtrain::train {

bool offloads_on_cpu() {
  return std::getenv("VLMTRAIN_OFFLOAD_ON_CPU") != nullptr;
}

void disable_offload(const planner::MemoryOptions& options, planner::Job& job) {
  const auto warn = [](std::string_view key) {
    if (!offloads_on_cpu()) spdlog::warn("{} has no effect: on the CPU, everything is in host memory", key);
  };
  if (options.offload != engine::Offload::kNone) warn(keys::memory::kOffload);
  if (options.offload_activations != false) warn(keys::memory::kOffloadActivations);
  job.offload = engine::Offload::kNone;
  job.offload_activations = false;
}

}  // namespace vlmtrain::train
