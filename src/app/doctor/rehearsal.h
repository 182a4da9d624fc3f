#pragma once

#include <cstdint>
#include <filesystem>

#include "vlmtrain/engine/options.h"
#include "vlmtrain/planner/virtual_card.h"

namespace vlmtrain::app {

struct DryRunSteps {
  int64_t steps = 0;
  double step_seconds = 0;  ///< of the rehearsals themselves
  double seconds = 0;       ///< with the start of the process
  int64_t reserved_bytes = 0;
};

/// Steps of a small model on a virtual card, in the planner's child process, for so many seconds. Throws as
/// planner::DryRunProcess.
DryRunSteps dry_run_steps(const std::filesystem::path& model, engine::Precision precision,
                          const planner::VirtualGpu& virtual_gpu, double seconds);

}  // namespace vlmtrain::app
