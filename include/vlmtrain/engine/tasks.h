#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "vlmtrain/data/sample.h"

namespace vlmtrain::engine {

/// What a step makes of the tasks of its samples (data::Sample::task_number).
struct TaskSettings {
  int64_t count = 0;                 ///< of the run; below 2: samples are not told apart
  std::vector<double> weights = {};  ///< of each task's label tokens in the loss; empty: 1
  bool gradient_norms = false;       ///< for GradNorm
  /// Gradients are summed by task, and conflicts between them are resolved by PCGrad. Micro-batches hold samples of one
  /// task each then.
  bool resolve_conflicts = false;
  uint64_t seed = 0;  ///< of the step, for the orders that PCGrad draws

  bool is_multi_task() const { return count > 1; }
};

struct TaskCounts {
  int64_t samples = 0;
  int64_t label_tokens = 0;
};

/// Of each task in a step. REQUIRES: settings.is_multi_task().
std::vector<TaskCounts> count_per_task(std::span<const data::Sample> samples, int64_t tasks);

/// What a step says of a task.
struct TaskResult {
  TaskCounts counts;
  double loss = 0;           ///< mean cross-entropy of its label tokens, without its weight; 0 where there are none
  double accuracy = 0;       ///< share of its label tokens that no other token was more likely than
  double gradient_norm = 0;  ///< of its share of the step's loss, as GradNorm measures it; 0 unless that was wanted
};

/// Reads the part of StepResult::numbers that is by task.
std::vector<TaskResult> make_task_results(std::span<const double> scalars, const std::vector<TaskCounts>& counts);

}  // namespace vlmtrain::engine
