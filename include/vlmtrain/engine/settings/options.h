#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "vlmtrain/base/options.h"
#include "vlmtrain/base/tensor_fwd.h"
#include "vlmtrain/engine/settings/balance_options.h"
#include "vlmtrain/engine/settings/optimizer_settings.h"
#include "vlmtrain/engine/settings/training_settings.h"
#include "vlmtrain/kernels/table.h"

namespace vlmtrain::engine {

/// The data type of weights and activations. The optimizer always has fp32 master weights.
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
/// same name (docs/config.md has meanings, ranges and the value of `auto`).
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
