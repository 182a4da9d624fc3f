#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "vlmtrain/base/options.h"

namespace vlmtrain::engine {

/// The scaling of learning rates with the batch size: 1, √f or f for a batch f times as large.
enum class BatchScaling { kNone, kSqrt, kLinear };

/// Returns the factor of learning rates for a batch `factor` times as large.
double compute_batch_scale(BatchScaling scaling, double factor);
/// Returns the name in the configuration.
std::string to_string(BatchScaling scaling);

/// The source of the tasks' weights in the loss.
enum class TaskWeighting { kNone, kFixed, kInverseSize, kGradNorm };

/// The treatment of conflicting task gradients.
enum class GradientConflicts { kNone, kPcGrad };

/// The options of section `training` that concern batch size and tasks.
struct BalanceOptions {
  Auto<int64_t> global_batch_tokens;
  BatchScaling batch_scaling = BatchScaling::kNone;
  Auto<int64_t> reference_batch_size;
  TaskWeighting task_weighting = TaskWeighting::kNone;
  std::vector<std::string> task_weights;
  double gradnorm_alpha = 1.5;
  double gradnorm_learning_rate = 0.025;
  GradientConflicts gradient_conflicts = GradientConflicts::kNone;
};

/// Adds the options, bound to `options`, to `table`.
void declare(OptionTable& table, BalanceOptions& options);

}  // namespace vlmtrain::engine
