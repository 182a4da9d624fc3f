#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "vlmtrain/base/options.h"

namespace vlmtrain::engine {

/// How learning rates follow the batch size. If the batch is f times as large as the reference,
/// they are multiplied by 1, √f or f.
enum class BatchScaling { kNone, kSqrt, kLinear };

/// Returns the factor by which learning rates are multiplied if the batch is `batch_ratio` times as
/// large as the reference.
double compute_learning_rate_factor(BatchScaling scaling, double batch_ratio);
/// Returns the value of `training.batch_scaling`: "none", "sqrt", "linear".
std::string to_string(BatchScaling scaling);

/// Source of the weights of the tasks in the loss.
enum class TaskWeighting {
  kNone,         ///< all weights are 1
  kFixed,        ///< BatchAndTaskOptions::task_weights
  kInverseSize,  ///< 1 / (samples of the task in the training data)
  kGradNorm,     ///< GradNorm changes the weights during training (task_balance.h)
};

/// Treatment of conflicting gradients of tasks.
enum class GradientConflictMethod {
  kNone,    ///< gradients are summed
  kPcGrad,  ///< conflicting components are projected away by PCGrad (task_balance.h)
};

/// The options of section `training` that concern batch size and tasks. Each field is the option of
/// the same name (docs/config.md).
struct BatchAndTaskOptions {
  AutoOr<int64_t> global_batch_tokens;  ///< approximate tokens of a step, image tokens included; auto: no target
  BatchScaling batch_scaling = BatchScaling::kNone;
  AutoOr<int64_t> reference_batch_size;  ///< batch size for which the learning rates hold; auto: global_batch_size
  TaskWeighting task_weighting = TaskWeighting::kNone;
  std::vector<std::string> task_weights;  ///< one "TASK=WEIGHT" per task; only for kFixed
  double gradnorm_alpha = 1.5;            ///< GradNormSettings::alpha, at least 0
  double gradnorm_learning_rate = 0.025;  ///< GradNormSettings::learning_rate, above 0
  GradientConflictMethod gradient_conflicts = GradientConflictMethod::kNone;
};

/// Adds the options to `table`, which writes parsed values to `options`. `options` must outlive
/// `table`.
void declare_options(OptionTable& table, BatchAndTaskOptions& options);

}  // namespace vlmtrain::engine
