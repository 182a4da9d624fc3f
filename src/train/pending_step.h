#pragma once

#include "train/callbacks/callback.h"
#include "train/oom_guard.h"
#include "train/upcoming_steps.h"
#include "vlmtrain/engine/async_scalars.h"

namespace vlmtrain::train {

/// A step whose loss and gradient norm are still on their way from the device.
class PendingStep {
 public:
  /// `memory` is what the device has now; the host's is asked for here.
  PendingStep(const GuardedStep& done, const UpcomingStep& step, const memory::DeviceMemory& memory, at::Device device);

  /// Waits for the device; the report is complete then.
  void read();

  StepReport report;
  /// By task, once read; empty where tasks are not told apart.
  std::vector<engine::TaskResult> tasks;
  std::vector<double> task_weights;  ///< that the step was done with

 private:
  engine::AsyncScalars numbers_;
  bool has_loss_scale_;
  std::vector<engine::TaskCounts> task_counts_;
};

}  // namespace vlmtrain::train
