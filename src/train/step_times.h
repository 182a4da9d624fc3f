#pragma once

#include <deque>
#include <optional>
#include <vector>

#include "train/oom_guard.h"
#include "train/step_plan.h"
#include "vlmtrain/planner/rehearsal.h"
#include "vlmtrain/planner/virtual_card.h"

namespace vlmtrain::train {

/// The newest steps of a run that were done as planned, with what they took. Steps are timed one behind the other,
/// since on a GPU one is still at work while the next begins: only their sum says how long they took.
class StepTimes {
 public:
  /// `seconds`: from the step's beginning to the next one's, the wait for its data included.
  void record(const PlannedStep& step, const CompletedStep& completed, double seconds);

  /// What the steps took by what is predicted for them, which a child process rehearses on `virtual_gpu`; nothing after
  /// too few steps. Throws as planner::DryRunProcess.
  std::optional<double> compute_ratio(const planner::Job& job, const planner::StepConfig& step_config,
                                      const planner::VirtualGpu& virtual_gpu) const;

 private:
  struct TimedStep {
    std::vector<planner::SampleGroup> samples;
    double seconds = 0;
  };

  std::deque<TimedStep> steps_;
};

}  // namespace vlmtrain::train
