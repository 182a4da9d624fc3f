#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "vlmtrain/engine/step.h"

namespace vlmtrain::engine {

/// What a step on the CPU says of its tasks. REQUIRES: they were told apart.
inline std::vector<TaskResult> read_task_results(const StepResult& result) {
  const at::Tensor scalars = result.objective_scalars.to(at::kDouble);
  return make_task_results({scalars.const_data_ptr<double>(), static_cast<size_t>(scalars.numel())}, result.tasks);
}

}  // namespace vlmtrain::engine
