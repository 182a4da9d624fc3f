#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>

#include "vlmtrain/planner/dry_run.h"
#include "vlmtrain/planner/split_plan.h"

namespace vlmtrain::planner {

/// How a run cuts its steps, each for its own samples, and what that came to: into how many micro-batches go steps as
/// it draws them, and what do rehearsed ones take, which are some of these and some of the largest samples.
struct SplitPlan {
  MemoryCostTable table;
  int64_t num_sampled_steps = 0;
  double micro_batches_per_step = 0;       ///< of these, the mean
  int64_t max_micro_batches = 0;           ///< of one of them
  int64_t min_micro_batches = 0;           ///< of one of them
  double step_seconds = 0;                 ///< predicted, the mean of those rehearsed; 0 on the CPU
  double samples_per_second = 0;           ///< the same, of a rank; 0 on the CPU
  StepPeaks peaks = {};                    ///< over all rehearsed steps, one after another
  int64_t num_dry_run_steps = 0;           ///< of the drawn ones
  int64_t num_measured_micro_batches = 0;  ///< that the table was learnt from

  nlohmann::ordered_json to_json() const;
};

}  // namespace vlmtrain::planner
