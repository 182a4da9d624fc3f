#include "vlmtrain/engine/settings/balance_options.h"

#include <cmath>

#include "vlmtrain/base/error.h"

namespace vlmtrain::engine {

namespace {

const std::vector<std::pair<std::string, BatchScaling>> kScalings{
    {"none", BatchScaling::kNone}, {"sqrt", BatchScaling::kSqrt}, {"linear", BatchScaling::kLinear}};

}  // namespace

double compute_batch_scale(BatchScaling scaling, double factor) {
  switch (scaling) {
    case BatchScaling::kNone:
      return 1.0;
    case BatchScaling::kSqrt:
      return std::sqrt(factor);
    case BatchScaling::kLinear:
      return factor;
  }
  throw InternalError("unknown batch scaling");
}

std::string to_string(BatchScaling scaling) {
  for (const auto& [name, value] : kScalings) {
    if (value == scaling) return name;
  }
  throw InternalError("a batch scaling without a name");
}

void declare(OptionTable& table, BalanceOptions& options) {
  table.add("training.global_batch_tokens", options.global_batch_tokens,
            "Approximate number of tokens per step, image tokens included (docs/tasks.md). A step then has at most "
            "`training.global_batch_size` samples. Requires `training.max_steps`. auto: off; each step has exactly "
            "`training.global_batch_size` samples.",
            std::optional{allow_auto(at_least<int64_t>(1))});
  table.add_enum("training.batch_scaling", options.batch_scaling, kScalings,
                 "Scaling of learning rates with the batch size: they are multiplied by 1, √f or f, where f is the "
                 "step's tokens / `training.global_batch_tokens`, or `training.global_batch_size` / "
                 "`training.reference_batch_size`.");
  table.add("training.reference_batch_size", options.reference_batch_size,
            "Global batch size for which the learning rates are meant. auto: `training.global_batch_size`.",
            std::optional{allow_auto(at_least<int64_t>(1))});
  table.add_enum("training.task_weighting", options.task_weighting,
                 {{"none", TaskWeighting::kNone},
                  {"fixed", TaskWeighting::kFixed},
                  {"inverse_size", TaskWeighting::kInverseSize},
                  {"gradnorm", TaskWeighting::kGradNorm}},
                 "Weights of the tasks in the loss (docs/tasks.md). fixed: `training.task_weights`. inverse_size: by 1 "
                 "/ samples of the task in `data.train`. gradnorm: GradNorm changes them during training.");
  table.add(
      "training.task_weights", options.task_weights,
      "With task_weighting=fixed: one entry for each task, `[caption=0.5, question=2]`. Only their ratios matter: they "
      "are scaled so that their mean over the samples of `data.train` is 1.");
  table.add("training.gradnorm_alpha", options.gradnorm_alpha,
            "GradNorm's alpha: how strongly tasks that learn slowly gain weight.", std::optional{at_least(0.0)});
  table.add("training.gradnorm_learning_rate", options.gradnorm_learning_rate, "Learning rate of GradNorm's weights.",
            std::optional{exceeds(0.0)});
  table.add_enum("training.gradient_conflicts", options.gradient_conflicts,
                 {{"none", GradientConflicts::kNone}, {"pcgrad", GradientConflicts::kPcGrad}},
                 "pcgrad: if the gradients of two tasks conflict, the projection of each onto the other is subtracted. "
                 "Needs 4 more bytes per trained weight and task after the first. Each micro-batch then has samples of "
                 "one task.");
}

}  // namespace vlmtrain::engine
