#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "vlmtrain/base/options.h"
#include "vlmtrain/engine/mask_losses.h"
#include "vlmtrain/engine/optimizer_states.h"
#include "vlmtrain/engine/schedule.h"
#include "vlmtrain/engine/settings/balance_options.h"
#include "vlmtrain/kernels/choice.h"

namespace vlmtrain::engine {

/// What the model computes in. The optimizer always works on fp32 master weights.
enum class Precision { kFp32, kBf16, kFp16 };

/// As the configuration writes them.
std::string to_string(Precision precision);
/// Nothing for a name that none has.
std::optional<Precision> parse_precision(std::string_view name);
std::string to_string(OptimizerStates states);

/// Of weights and activations.
at::ScalarType to_dtype(Precision precision);

/// The most optimizer steps of a run.
inline constexpr int64_t kMaxSteps = 1'000'000'000;

/// Section `training`, as far as it says how an optimizer step is done.
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

void declare(OptionTable& table, TrainingOptions& options);

}  // namespace vlmtrain::engine
