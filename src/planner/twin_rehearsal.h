#pragma once

#include "planner/dry_run/dry_run_session.h"
#include "vlmtrain/planner/look_ahead.h"

namespace vlmtrain::planner {

/// The child's side of a twin: keeps a run on the virtual card and does its steps.
class LookAheadDryRun {
 public:
  LookAheadDryRun(const Job& job, const StepConfig& step_config, at::Device device);

  /// Tries the step as it is asked for; then with an empty cache; then cut smaller where it does not fit. Every attempt
  /// after the first starts from an empty cache, as the run's own step then does: failed attempts leave no trace.
  MemoryForecast dry_run(const LookAheadStep& step);

 private:
  bool run_attempt(const LookAheadStep& step, MemoryForecast& forecast);

  at::Device device_;
  DryRunSession run_;
  int64_t failed_micro_batch_ = -1;
  int64_t num_retries_ = 0;  // of the last attempt
};

}  // namespace vlmtrain::planner
