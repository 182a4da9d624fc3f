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

/// How a test wants a step done; the model recomputes as it was told before.
struct SmallStep {
  int64_t micro_batch_size = 1;
  int64_t loss_chunk_rows = 1024;
  TaskSettings tasks = {};
  std::vector<int64_t> micro_batches = {};  ///< sizes, of samples in `order`; empty: all of micro_batch_size
  std::vector<int64_t> order = {};          ///< empty: their own

  StepLayout make_layout(const models::VisionLanguageModel& model, std::span<const data::Sample> samples) const {
    const SplitConstraint constraint = CrossEntropy(tasks).split_constraint(samples);
    MicroBatchSplit split = micro_batches.empty() ? split_evenly(std::ssize(samples), micro_batch_size, constraint)
                                                  : split_in_order(micro_batches);
    if (!order.empty()) split.order = order;
    return {.split = std::move(split),
            .recompute = model.recompute(),
            .vision_tiles_per_pass = model.vision_tiles_per_pass(),
            .loss_chunk_rows = loss_chunk_rows};
  }
};

/// The passes, with what they sum up beside the loss; gradients are the parameters' own, or in `buckets`.
inline StepResult accumulate_gradients(models::VisionLanguageModel& model, std::span<const data::Sample> samples,
                                       const SmallStep& step, const at::Tensor& loss_scale = {},
                                       GradientBuckets* buckets = nullptr) {
  const CrossEntropy objective(step.tasks);
  auto accumulation =
      accumulate(model, make_step_input(objective, samples), step.make_layout(model, samples), loss_scale, buckets);
  accumulation.result.objective_scalars = accumulation.loss->scalars();
  return accumulation.result;
}

inline StepResult optimizer_step(Training& training, std::span<const data::Sample> samples, const LearningRates& rates,
                                 const SmallStep& step) {
  const CrossEntropy objective(step.tasks);
  return optimizer_step(training, make_step_input(objective, samples), step.make_layout(training.model, samples),
                        rates);
}

/// What a step on the CPU says of its tasks. REQUIRES: they were told apart.
inline std::vector<TaskResult> read_task_results(const StepResult& result) {
  const at::Tensor scalars = result.objective_scalars.to(at::kDouble);
  return make_task_results({scalars.const_data_ptr<double>(), static_cast<size_t>(scalars.numel())}, result.tasks);
}

/// Of one step.
struct Gradients {
  double loss = 0;
  std::map<std::string, at::Tensor> by_name;
};

}  // namespace vlmtrain::engine
