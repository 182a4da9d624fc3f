#include "vlmtrain/engine/settings/balance_options.h"

#include <cmath>

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
  for (const auto& [name, value] : kBatchScalingNames) {
    if (value == scaling) return name;
  }
  throw InternalError("a batch scaling without a name");
}

void declare_options(OptionTable& table, BatchAndTaskOptions& options) {
  table.add("training.global_batch_tokens", options.global_batch_tokens,
            "Approximate number of tokens per step, image tokens included, with at most `training.global_batch_size` "
            "samples (docs/tasks.md). Requires `training.max_steps`. auto: off, a step takes exactly "
            "`training.global_batch_size` samples.",
            std::optional{allow_auto(at_least<int64_t>(1))});
  table.add_enum("training.batch_scaling", options.batch_scaling, kBatchScalingNames,
                 "Scaling of the learning rates with the batch size. With f = tokens of the step / "
                 "`training.global_batch_tokens`, or `training.global_batch_size` / `training.reference_batch_size`, "
                 "they are multiplied by 1, √f or f.");
  table.add("training.reference_batch_size", options.reference_batch_size,
            "Global batch size for which the learning rates were tuned. auto: the batch size of the run.",
            std::optional{allow_auto(at_least<int64_t>(1))});
  table.add_enum("training.task_weighting", options.task_weighting,
                 {{"none", TaskWeighting::kNone},
                  {"fixed", TaskWeighting::kFixed},
                  {"inverse_size", TaskWeighting::kInverseSize},
                  {"gradnorm", TaskWeighting::kGradNorm}},
                 "Weights of the tasks in the loss (docs/tasks.md). fixed: `training.task_weights`. inverse_size: 1 / "
                 "number of samples of the task in `data.train`. gradnorm: GradNorm adapts them during training.");
  table.add("training.task_weights", options.task_weights,
            "With fixed weights: one entry per task, `[caption=0.5, question=2]`. Only their ratios count: they are "
            "scaled to a mean of 1 over the samples of `data.train`.");
  table.add("training.gradnorm_alpha", options.gradnorm_alpha,
            "GradNorm's alpha: how strongly tasks that learn slowly are favored.", std::optional{at_least(0.0)});
  table.add("training.gradnorm_learning_rate", options.gradnorm_learning_rate, "Learning rate of GradNorm's weights.",
            std::optional{exceeds(0.0)});
  table.add_enum("training.gradient_conflicts", options.gradient_conflicts,
                 {{"none", GradientConflictMethod::kNone}, {"pcgrad", GradientConflictMethod::kPcGrad}},
                 "Handling of conflicting gradients. pcgrad: if the gradients of two tasks point against each other, "
                 "each loses its component along the other. This takes 4 more bytes per trained weight and task beyond "
                 "the first, and each micro-batch then has samples of one task only.");
}

}  // namespace vlmtrain::engine
