#pragma once

#include <cstdint>
#include <optional>

#include "vlmtrain/data/loader.h"
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

}  // namespace vlmtrain::train
