#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "vlmtrain/base/options.h"

namespace vlmtrain::engine {

/// What a learning rate is multiplied by where a batch is f times as large: 1, √f or f.
enum class BatchScaling { kNone, kSqrt, kLinear };

double compute_batch_scale(BatchScaling scaling, double factor);
std::string to_string(BatchScaling scaling);

/// Where the weights of tasks in the loss come from.
enum class TaskWeighting { kNone, kFixed, kInverseSize, kGradNorm };

/// What is done where the gradients of tasks point against each other.
enum class GradientConflicts { kNone, kPcGrad };

/// The part of section `training` that is about the size of the batch and about tasks.
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

void declare(OptionTable& table, BalanceOptions& options);

}  // namespace vlmtrain::engine
