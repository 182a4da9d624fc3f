#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "vlmtrain/base/options.h"
#include "vlmtrain/engine/settings/balance_options.h"
#include "vlmtrain/engine/settings/training_settings.h"
#include "vlmtrain/kernels/kernel_backend.h"

namespace vlmtrain::engine {

/// The data type of weights and activations. The optimizer always has fp32 master weights.
enum class Precision { kFp32, kBf16, kFp16 };

/// Returns the name in the configuration.
std::string to_string(Precision precision);
/// Returns the precision of that name; nullopt for an unknown name.
std::optional<Precision> parse_precision(std::string_view name);
/// Returns the name in the configuration.
std::string to_string(OptimizerStates states);

/// Returns the dtype of weights and activations.
at::ScalarType to_dtype(Precision precision);

/// The maximum number of optimizer steps of a run. Far beyond any training; keeps products of step
/// and batch size within int64.
inline constexpr int64_t kMaxSteps = 1'000'000'000;

/// The options of section `training` that concern optimizer steps.
struct TrainingOptions {
  int64_t global_batch_size = 16;
  Auto<int64_t> micro_batch_size;
  Auto<int64_t> max_steps;
  double epochs = 1.0;
  double learning_rate = 1e-5;
  Auto<double> vision_learning_rate;
  Auto<double> projector_learning_rate;
  Auto<double> mask_learning_rate;
  MaskLossWeights mask_losses;
  double adam_beta1 = 0.9;
  double adam_beta2 = 0.999;
  double adam_epsilon = 1e-8;
  double weight_decay = 0.0;
  double warmup_ratio = 0.03;
  ScheduleShape lr_scheduler = ScheduleShape::kCosine;
  double max_grad_norm = 1.0;
  Precision precision = Precision::kBf16;
  Auto<double> loss_scale;
  int64_t loss_scale_growth_steps = 2000;
  OptimizerStates optimizer_states = OptimizerStates::kFp32;
  kernels::KernelBackend kernels = kernels::KernelBackend::kCustom;
  int64_t seed = 0;
  BalanceOptions balance;
};

/// Adds the options, bound to `options`, to `table`.
void declare(OptionTable& table, TrainingOptions& options);

}  // namespace vlmtrain::engine
