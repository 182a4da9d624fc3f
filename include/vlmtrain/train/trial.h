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
struct TrialSettings {
  std::filesystem::path model;  ///< folder with config.json and the processor's settings; no weights are read
  at::Device device = at::kCPU;
  engine::Precision precision = engine::Precision::kBf16;
  double seconds = 1;  ///< steps are done for as long, but kFewestSteps at least
};

inline constexpr int64_t kFewestSteps = 3;

struct Trial {
  double first_loss = 0;
  double last_loss = 0;                           ///< of the batch that all steps learn
  std::map<std::string, at::Tensor> gradients{};  ///< of the first step by parameter; on the CPU, fp32
  int64_t steps = 0;
  double steps_per_second = 0;  ///< without the first, in which kernels are loaded
};

/// Trains with the engine that runs train with. Throws what a step throws.
Trial try_training(const TrialSettings& settings);

/// How far `found` is from `wanted`, relative: of the losses, and of the parameter whose gradient is furthest off.
/// Gradients with less than a hundredth of the whole norm count as if they had as much.
struct TrialDifference {
  double loss = 0;
  double gradient = 0;
  std::string parameter{};  ///< whose gradient it is
};

TrialDifference difference(const Trial& found, const Trial& wanted);

/// What the rounding of a precision explains, of a trial against the CPU's in fp32.
struct TrialTolerance {
  double loss = 0;
  double gradient = 0;
};

TrialTolerance tolerance_of(engine::Precision precision);

}  // namespace vlmtrain::train
