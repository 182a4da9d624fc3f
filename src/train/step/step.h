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

/// The layout of a step, as far as it is known in advance.
struct StepPlan {
  engine::StepLayout layout;
  bool empty_cache_first = false;                ///< calls memory::release_unused() before the step
  std::optional<planner::StepPeaks> peaks = {};  ///< predicted by the look-ahead
  bool fits = true;  ///< false: no split fits, so that the step may fail; `layout` takes the least memory
  /// Position of the sample that fails even alone, if it does not fit; nullopt if the
  /// optimizer does not fit or the reason is unknown.
  std::optional<int64_t> oversized_sample = {};
};

/// A step that is ready to run.
struct PlannedStep {
  int64_t step = 0;  ///< counted from 1
  data::GlobalBatch batch;
  engine::StepLayout layout;     ///< of the run's plan
  StepPlan plan;                 ///< with `layout`, or with that of the look-ahead
  double data_wait_seconds = 0;  ///< that loader threads took to make the step ready
};

/// The report of a completed step whose loss and gradient norm are still being copied from the
/// device.
class PendingReport {
 public:
  /// Reads the host's memory figures. `objective`: that of the step.
  PendingReport(const PlannedStep& step, const CompletedStep& completed,
                std::shared_ptr<const engine::Objective> objective, at::Device device);

  /// Waits for the device and completes the report.
  void complete();

  StepReport report;
  /// Results by task, after complete(); empty if tasks are not separated.
  std::vector<engine::TaskResult> tasks;
  std::vector<double> task_weights() const { return objective_->task_weights(); }

 private:
  engine::AsyncScalars numbers_;
  bool has_loss_scale_;
  std::vector<engine::TaskCounts> task_counts_;
  std::shared_ptr<const engine::Objective> objective_;
};

}  // namespace vlmtrain::train
