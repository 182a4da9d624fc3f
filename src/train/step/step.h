#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "train/run/callbacks.h"
#include "train/step/oom_guard.h"
#include "vlmtrain/data/loader.h"
#include "vlmtrain/engine/async_scalars.h"
#include "vlmtrain/engine/objective.h"
#include "vlmtrain/engine/step_layout.h"
#include "vlmtrain/planner/rehearsal.h"

namespace vlmtrain::train {

/// How a step is to be done, as far as is known beforehand.
struct StepPlan {
  engine::StepLayout layout;
  bool empty_cache_first = false;                ///< memory::release_unused() before the step
  std::optional<planner::StepPeaks> peaks = {};  ///< as the twin found them
  bool fits = true;  ///< false: however it is cut, so that it may fail; `layout` takes least
  /// Where it does not: the place of the sample that fails even alone; nothing if that is the optimizer or nobody
  /// knows.
  std::optional<int64_t> oversized_sample = {};
};

/// A step that is about to be done.
struct PlannedStep {
  int64_t step = 0;  ///< from 1
  data::GlobalBatch batch;
  engine::StepLayout layout;     ///< that the run's plan gives it
  StepPlan plan;                 ///< the same, or what the twin made of it
  double data_wait_seconds = 0;  ///< for loader threads, while this step was made ready
};

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
