#include "vlmtrain/engine/settings/balance_options.h"

#include <cmath>

#include "engine/settings/enum_names.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::engine {

namespace {

const std::vector<std::pair<std::string, BatchScaling>> kBatchScalingNames{
    {"none", BatchScaling::kNone}, {"sqrt", BatchScaling::kSqrt}, {"linear", BatchScaling::kLinear}};

}  // namespace

double compute_learning_rate_factor(BatchScaling scaling, double batch_ratio) {
  switch (scaling) {
    case BatchScaling::kNone:
      return 1.0;
    case BatchScaling::kSqrt:
      return std::sqrt(batch_ratio);
    case BatchScaling::kLinear:
      return batch_ratio;
  }
  throw InternalError("unknown batch scaling");
}

std::string to_string(BatchScaling scaling) {
  return find_enum_name(kBatchScalingNames, scaling);
}

void declare_options(OptionTable& table, BatchAndTaskOptions& options) {
  table.add(
      keys::training::kGlobalBatchTokens, options.global_batch_tokens,
      {.doc = "Approximate number of tokens per step, image tokens included, with at most `training.global_batch_size` "
              "samples (docs/tasks.md). Requires `training.max_steps`. auto: off, a step takes exactly "
              "`training.global_batch_size` samples.",
       .resume = ResumeRule::kIfRequested,
       .unit = "tokens"},
      allow_auto(at_least<int64_t>(1)));
  table.add_enum(
      keys::training::kBatchScaling, options.batch_scaling, kBatchScalingNames,
      {.doc = "Scaling of the learning rates with the batch size. With f = tokens of the step / "
              "`training.global_batch_tokens`, or `training.global_batch_size` / `training.reference_batch_size`, "
              "they are multiplied by 1, √f or f.",
       .resume = ResumeRule::kIfRequested});
  table.add(keys::training::kReferenceBatchSize, options.reference_batch_size,
            {.doc = "Global batch size for which the learning rates were tuned. auto: the batch size of the run.",
             .resume = ResumeRule::kIfRequested,
             .unit = "samples"},
            allow_auto(at_least<int64_t>(1)));
  table.add_enum(
      keys::training::kTaskWeighting, options.task_weighting,
      {{"none", TaskWeighting::kNone},
       {"fixed", TaskWeighting::kFixed},
       {"inverse_size", TaskWeighting::kInverseSize},
       {"gradnorm", TaskWeighting::kGradNorm}},
      {.doc = "Weights of the tasks in the loss (docs/tasks.md). fixed: `training.task_weights`. inverse_size: 1 / "
              "number of samples of the task in `data.train`. gradnorm: GradNorm adapts them during training.",
       .resume = ResumeRule::kIfRequested});
  table.add(
      keys::training::kTaskWeights, options.task_weights,
      {.doc = "With fixed weights: one entry per task, `[caption=0.5, question=2]`. Only their ratios count: they are "
              "scaled to a mean of 1 over the samples of `data.train`.",
       .resume = ResumeRule::kIfRequested});
  table.add(keys::training::kGradnormAlpha, options.gradnorm_alpha,
            {.doc = "GradNorm's alpha: how strongly tasks that learn slowly are favored.",
             .resume = ResumeRule::kIfRequested},
            at_least(0.0));
  table.add(keys::training::kGradnormLearningRate, options.gradnorm_learning_rate,
            {.doc = "Learning rate of GradNorm's weights.", .resume = ResumeRule::kIfRequested}, exceeds(0.0));
  table.add_enum(
      keys::training::kGradientConflicts, options.gradient_conflicts,
      {{"none", GradientConflictMethod::kNone}, {"pcgrad", GradientConflictMethod::kPcGrad}},
      {.doc = "Handling of conflicting gradients. pcgrad: if the gradients of two tasks point against each other, "
              "each loses its component along the other. This takes 4 more bytes per trained weight and task beyond "
              "the first, and each micro-batch then has samples of one task only.",
       .resume = ResumeRule::kIfRequested});
}

}  // namespace vlmtrain::engine
