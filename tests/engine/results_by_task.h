#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "vlmtrain/engine/step.h"

namespace vlmtrain::engine {

/// What a step on the CPU says of its tasks. REQUIRES: they were told apart.
inline std::vector<TaskResult> results_by_task(const StepResult& result) {
  const at::Tensor numbers = result.objective_numbers.to(at::kDouble);
  return task_results({numbers.const_data_ptr<double>(), static_cast<size_t>(numbers.numel())}, result.tasks);
}

}  // namespace vlmtrain::engine
