#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "train/run/callbacks.h"
#include "train/step/oom_guard.h"
#include "vlmtrain/data/loader/loader.h"
#include "vlmtrain/engine/loss/objective.h"
#include "vlmtrain/engine/settings/step_layout.h"
#include "vlmtrain/engine/step/step.h"
#include "vlmtrain/planner/dry_run.h"

namespace vlmtrain::train {

/// The layout that a step is run with, and its predicted memory.
struct StepPlan {
  engine::StepLayout layout;
  bool empty_cache_at_start = false;             ///< empties the allocator's cache before the step
  std::optional<planner::StepPeaks> peaks = {};  ///< prediction of the look-ahead; nullopt without one
  bool fits = true;  ///< false: no split fits, and the step may fail; `layout` is the one of minimum memory
  /// If !fits: index in the step of the sample that does not fit even alone; nullopt if the
  /// optimizer does not fit or the reason is unknown.
  std::optional<int64_t> oversized_sample_index = {};
};

/// A step that is ready to run.
struct PlannedStep {
  int64_t step = 0;  ///< number of the step, from 1
  data::GlobalBatch batch;
  engine::StepLayout layout;     ///< the layout by the run's plan
  StepPlan plan;                 ///< the layout to run: the look-ahead's, or `layout` without a look-ahead
  double data_wait_seconds = 0;  ///< time that the run waited for the loader
};

/// The report of a completed step, whose loss and gradient norm are still being copied from the
/// device. Not thread-safe; used by the run's thread.
class PendingStepReport {
 public:
  /// Fills `report` except for the results of the step, and reads the memory that device and host
  /// use now. `objective`: the objective of the step, not null.
  PendingStepReport(const PlannedStep& step, const CompletedStep& completed_step,
                    std::shared_ptr<const engine::Objective> objective, at::Device device);

  /// Waits for the device and completes `report` and `tasks`. Called once. Throws the device's
  /// errors.
  void complete_report();

  StepReport report;
  /// Results by task index, set by complete_report(); empty if the objective does not separate
  /// tasks.
  std::vector<engine::TaskResult> tasks;
  /// Returns the task weights of the step; empty if all are 1.
  std::vector<double> task_weights() const { return objective_->task_weights(); }

 private:
  engine::AsyncScalarCopy result_scalars_;  // loss, gradient norm, whether skipped, loss scale, and the objective's
  bool has_loss_scale_;
  std::vector<engine::TaskCounts> task_counts_;
  std::shared_ptr<const engine::Objective> objective_;
};

}  // namespace vlmtrain::train
