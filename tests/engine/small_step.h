#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "vlmtrain/engine/loss/objective.h"
#include "vlmtrain/engine/step/step.h"

namespace vlmtrain::engine {

/// The options of a step in tests. Recomputation is that of the model.
struct SmallStep {
  int64_t micro_batch_size = 1;
  int64_t loss_chunk_rows = 1024;
  TaskSettings tasks = {};
  std::vector<int64_t> micro_batches = {};  ///< sizes in the order of `order`; empty: all of micro_batch_size
  std::vector<int64_t> order = {};          ///< empty: ascending

  StepLayout make_layout(const models::VisionLanguageModel& model, std::span<const data::Sample> samples) const {
    const SplitConstraint constraint = CrossEntropyObjective(tasks).make_split_constraint(samples);
    MicroBatchSplit split = micro_batches.empty() ? split_evenly(std::ssize(samples), micro_batch_size, constraint)
                                                  : split_in_order(micro_batches);
    if (!order.empty()) split.order = order;
    return {.split = std::move(split),
            .recompute = model.recompute_block_counts(),
            .vision_tiles_per_pass = model.vision_tiles_per_pass(),
            .loss_chunk_rows = loss_chunk_rows};
  }
};

/// Runs the passes of a step with the scalars of its objective. Gradients are added to `buckets`,
/// or to those of the parameters.
inline StepResult accumulate_gradients(models::VisionLanguageModel& model, std::span<const data::Sample> samples,
                                       const SmallStep& step, const at::Tensor& loss_scale = {},
                                       GradientBuckets* buckets = nullptr) {
  const CrossEntropyObjective objective(step.tasks);
  auto accumulation =
      accumulate(model, make_step_input(objective, samples), step.make_layout(model, samples), loss_scale, buckets);
  accumulation.result.objective_scalars = accumulation.loss->compute_metric_scalars();
  return accumulation.result;
}

/// Runs all phases of a step on a single rank.
inline StepResult run_optimizer_step(TrainingState& training, std::span<const data::Sample> samples,
                                     const LearningRates& rates, const SmallStep& step) {
  const CrossEntropyObjective objective(step.tasks);
  return run_optimizer_step(training, make_step_input(objective, samples), step.make_layout(training.model, samples),
                            rates);
}

/// Returns the results by task of a step on the CPU. REQUIRES: several tasks.
inline std::vector<TaskResult> read_task_results(const StepResult& result) {
  const at::Tensor scalars = result.objective_scalars.to(at::kDouble);
  return make_task_results({scalars.const_data_ptr<double>(), static_cast<size_t>(scalars.numel())},
                           result.task_counts);
}

/// Loss and gradients of one step.
struct Gradients {
  double loss = 0;
  std::map<std::string, at::Tensor> by_name;
};

}  // namespace vlmtrain::engine
