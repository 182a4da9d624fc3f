#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "vlmtrain/base/options.h"
#include "vlmtrain/base/tensor_fwd.h"
#include "vlmtrain/engine/settings/training_settings.h"
#include "vlmtrain/kernels/table.h"

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
/// the same name (docs/reference/config.md).
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

/// The data type of weights and activations.
enum class Precision { kFp32, kBf16, kFp16 };

/// Returns the value of `training.precision`: "fp32", "bf16", "fp16".
std::string to_string(Precision precision);
/// Parses a value of `training.precision`. Returns nullopt for an unknown value.
std::optional<Precision> parse_precision(std::string_view name);

/// Returns the dtype of weights and activations.
at::ScalarType to_dtype(Precision precision);

/// The maximum number of optimizer steps of a run. Far above any training. Keeps products of step
/// and batch size within int64.
inline constexpr int64_t kMaxSteps = 1'000'000'000;

/// The options of section `training` that concern optimizer steps. Each field is the option of the
/// same name (docs/reference/config.md has meanings, ranges and the value of `auto`).
struct TrainingOptions {
  int64_t global_batch_size = 16;
  AutoOr<int64_t> micro_batch_size;
  AutoOr<int64_t> max_steps;
  double epochs = 1.0;
  double learning_rate = 1e-5;
  AutoOr<double> vision_learning_rate;
  AutoOr<double> projector_learning_rate;
  AutoOr<double> mask_learning_rate;
  TextAndMaskLossWeights mask_loss_weights;  ///< text_loss_weight, mask_bce_weight and mask_dice_weight
  OptimizerSettings optimizer;               ///< without loss_scale and seed
  double warmup_ratio = 0.03;
  ScheduleShape lr_scheduler = ScheduleShape::kCosine;
  Precision precision = Precision::kBf16;
  AutoOr<double> loss_scale;
  int64_t loss_scale_growth_steps = 2000;
  kernels::KernelBackend kernels = kernels::KernelBackend::kCustom;
  int64_t seed = 0;
  BatchAndTaskOptions batch_and_tasks;
};

/// Adds the options to `table`, which writes parsed values to `options`. `options` must outlive
/// `table`.
void declare_options(OptionTable& table, TrainingOptions& options);

}  // namespace vlmtrain::engine
