#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

#include "vlmtrain/engine/settings/options.h"

namespace vlmtrain::train {

/// A short training of a random model on one random batch, both the same in every process.
struct SmokeRunSettings {
  std::filesystem::path model;  ///< folder with config.json and the processor's settings; weights are not read
  at::Device device = at::kCPU;
  engine::Precision precision = engine::Precision::kBf16;
  double seconds = 1;  ///< duration; at least kMinSmokeRunSteps steps are run
};

inline constexpr int64_t kMinSmokeRunSteps = 3;

/// The result of a smoke run.
struct SmokeRun {
  double first_loss = 0;
  double last_loss = 0;                           ///< loss of the batch that all steps train on
  std::map<std::string, at::Tensor> gradients{};  ///< gradients of the first step by parameter, fp32 on the CPU
  int64_t steps = 0;
  double steps_per_second = 0;  ///< without the first step, which loads kernels
};

/// Trains with the engine of real runs. Throws what a step throws.
SmokeRun run_smoke_training(const SmokeRunSettings& settings);

/// The relative difference of `actual` from `expected`: of the losses, and of the parameter whose
/// gradient differs most. A gradient below a hundredth of the total norm counts with that norm, so
/// that rounding of small gradients does not dominate.
struct SmokeRunDifference {
  double loss = 0;
  double gradient = 0;
  std::string parameter{};  ///< the parameter with the largest gradient difference
};

/// Returns the differences of two smoke runs with the same settings but device and precision.
SmokeRunDifference compare_smoke_runs(const SmokeRun& actual, const SmokeRun& expected);

/// The difference from an fp32 run on the CPU that the rounding of a precision explains.
struct SmokeRunTolerance {
  double loss = 0;
  double gradient = 0;
};

/// Returns the tolerance for a smoke run in `precision`.
SmokeRunTolerance get_smoke_run_tolerance(engine::Precision precision);

}  // namespace vlmtrain::train
