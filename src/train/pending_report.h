#pragma once

#include <memory>
#include <vector>

#include "train/callbacks/callback.h"
#include "train/oom_guard.h"
#include "train/step_plan.h"
#include "vlmtrain/engine/async_scalars.h"
#include "vlmtrain/engine/objective.h"

namespace vlmtrain::train {

/// The report of a step that is done, whose loss and gradient norm are still on their way from the device.
class PendingReport {
 public:
  /// The host's memory is asked for here. `objective`: that the step was done with.
  PendingReport(const PlannedStep& step, const CompletedStep& completed,
                std::shared_ptr<const engine::Objective> objective, at::Device device);

  /// Waits for the device; the report is complete then.
  void complete();

  StepReport report;
  /// By task, once read; empty where tasks are not told apart.
  std::vector<engine::TaskResult> tasks;
  std::vector<double> task_weights() const { return objective_->task_weights(); }

 private:
  engine::AsyncScalars numbers_;
  bool has_loss_scale_;
  std::vector<engine::TaskCounts> task_counts_;
  std::shared_ptr<const engine::Objective> objective_;
};

}  // namespace vlmtrain::train
