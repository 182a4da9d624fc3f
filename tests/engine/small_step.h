#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "vlmtrain/engine/cross_entropy.h"
#include "vlmtrain/engine/step.h"

namespace vlmtrain::engine {

/// How a test wants a step done; the model recomputes as it was told before.
struct SmallStep {
  int64_t micro_batch_size = 1;
  int64_t loss_chunk_rows = 1024;
  TaskSettings tasks = {};
  std::vector<int64_t> micro_batches = {};  ///< sizes, of samples in `order`; empty: all of micro_batch_size
  std::vector<int64_t> order = {};          ///< empty: their own

  StepLayout layout_of(const models::VisionLanguageModel& model, std::span<const data::Sample> samples) const {
    const CutRule rule = CrossEntropy(tasks).cut_rule(samples);
    Cut cut =
        micro_batches.empty() ? equal_cut(std::ssize(samples), micro_batch_size, rule) : cut_in_order(micro_batches);
    if (!order.empty()) cut.order = order;
    return {.cut = std::move(cut),
            .recompute = model.recompute(),
            .vision_tiles_per_pass = model.vision_tiles_per_pass(),
            .loss_chunk_rows = loss_chunk_rows};
  }
};

/// The passes, with what they sum up beside the loss; gradients are the parameters' own, or in `sums`.
inline StepResult accumulate_gradients(models::VisionLanguageModel& model, std::span<const data::Sample> samples,
                                       const SmallStep& step, const at::Tensor& loss_scale = {},
                                       GradientSums* sums = nullptr) {
  const CrossEntropy objective(step.tasks);
  auto done = accumulate(model, step_input(objective, samples), step.layout_of(model, samples), loss_scale, sums);
  done.result.objective_numbers = done.loss->numbers();
  return done.result;
}

inline StepResult optimizer_step(Training& training, std::span<const data::Sample> samples, const LearningRates& rates,
                                 const SmallStep& step) {
  const CrossEntropy objective(step.tasks);
  return optimizer_step(training, step_input(objective, samples), step.layout_of(training.model, samples), rates);
}

}  // namespace vlmtrain::engine
