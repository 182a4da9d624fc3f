#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

#include "vlmtrain/engine/settings/options.h"

namespace vlmtrain::train {

/// The settings of a smoke run: a short training of a randomly initialized model on one random
/// batch. Model and batch are the same in every process.
struct SmokeRunSettings {
  std::filesystem::path model;  ///< folder with config.json and the processor's settings; weights are not read
  at::Device device = at::kCPU;
  engine::Precision precision = engine::Precision::kBf16;
  double seconds = 1;  ///< duration; at least kMinSmokeRunSteps steps are run
};

/// The first step, which loads kernels and is not timed, and two timed steps.
inline constexpr int64_t kMinSmokeRunSteps = 3;

/// The result of a smoke run.
struct SmokeRunResult {
  double first_loss = 0;                          ///< loss of the batch before the first step
  double last_loss = 0;                           ///< loss of the same batch before the last step
  std::map<std::string, at::Tensor> gradients{};  ///< gradients of the first step by parameter, fp32 on the CPU
  int64_t steps = 0;
  double steps_per_second = 0;  ///< without the first step, which loads kernels
};

/// Trains with the same engine as a run. Throws UserError for an invalid config.json, and the
/// errors of engine::optimizer_step().
SmokeRunResult run_smoke_training(const SmokeRunSettings& settings);

/// The relative difference between two smoke runs. The difference of a gradient is the norm of the
/// difference divided by the expected norm, or by a hundredth of the total gradient norm if that is
/// larger, so that rounding of small gradients does not dominate.
struct SmokeRunDifference {
  double loss = 0;          ///< of the first steps
  double gradient = 0;      ///< largest difference of a parameter; NaN if one is NaN
  std::string parameter{};  ///< the parameter with the largest gradient difference
};

/// Returns the difference of `actual` from `expected`. REQUIRES: their settings differ at most in
/// device, precision and duration.
SmokeRunDifference compare_smoke_runs(const SmokeRunResult& actual, const SmokeRunResult& expected);

/// The largest SmokeRunDifference from an fp32 run on the CPU that rounding explains.
struct SmokeRunTolerance {
  double loss = 0;
  double gradient = 0;
};

/// Returns the tolerance for a smoke run in `precision`.
SmokeRunTolerance get_smoke_run_tolerance(engine::Precision precision);

}  // namespace vlmtrain::train
