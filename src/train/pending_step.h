#pragma once

#include <string>

#include "vlmtrain/data/loader.h"
#include "vlmtrain/engine/async_scalars.h"
#include "vlmtrain/engine/step.h"
#include "vlmtrain/report/metrics.h"

namespace vlmtrain::train {

/// A step whose loss and gradient norm are still on their way from the device.
class PendingStep {
 public:
  PendingStep(const engine::StepResult& result, const data::GlobalBatch& batch, at::Device device);

  /// Waits for the device and completes `metrics`.
  void read();

  report::StepMetrics metrics;
  std::string sample_ids;  ///< for an error's message

 private:
  engine::AsyncScalars scalars_;
};

/// {"step":…,"ids":[…]}: the samples that a step was made of.
std::string sample_ids_line(int64_t step, const data::GlobalBatch& batch);

}  // namespace vlmtrain::train
