#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

#include "vlmtrain/engine/options.h"

namespace vlmtrain::train {

/// What a trial trains: a model at random on a batch at random, both always the same.
struct SmokeRunSettings {
  std::filesystem::path model;  ///< folder with config.json and the processor's settings; no weights are read
  at::Device device = at::kCPU;
  engine::Precision precision = engine::Precision::kBf16;
  double seconds = 1;  ///< steps are done for as long, but kMinSmokeRunSteps at least
};

inline constexpr int64_t kMinSmokeRunSteps = 3;

struct SmokeRun {
  double first_loss = 0;
  double last_loss = 0;                           ///< of the batch that all steps learn
  std::map<std::string, at::Tensor> gradients{};  ///< of the first step by parameter; on the CPU, fp32
  int64_t steps = 0;
  double steps_per_second = 0;  ///< without the first, in which kernels are loaded
};

/// Trains with the engine that runs train with. Throws what a step throws.
SmokeRun run_smoke_training(const SmokeRunSettings& settings);

/// How far `actual` is from `expected`, relative: of the losses, and of the parameter whose gradient is furthest off.
/// Gradients with less than a hundredth of the whole norm count as if they had as much.
struct SmokeRunDifference {
  double loss = 0;
  double gradient = 0;
  std::string parameter{};  ///< whose gradient it is
};

SmokeRunDifference compare_smoke_runs(const SmokeRun& actual, const SmokeRun& expected);

/// What the rounding of a precision explains, of a trial against the CPU's in fp32.
struct SmokeRunTolerance {
  double loss = 0;
  double gradient = 0;
};

SmokeRunTolerance get_smoke_run_tolerance(engine::Precision precision);

}  // namespace vlmtrain::train
