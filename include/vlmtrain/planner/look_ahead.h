#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "vlmtrain/engine/settings/step_layout.h"
#include "vlmtrain/planner/dry_run.h"
#include "vlmtrain/planner/virtual_gpu.h"

namespace vlmtrain::planner {

/// A future step of a run.
struct LookAheadStep {
  int64_t step = 0;
  std::vector<SampleGroup> samples;  ///< in order
  engine::StepLayout layout;         ///< preferred layout
  bool empty_cache_first = false;    ///< the run empties the allocator's cache before the step
  int64_t limit_bytes = 0;           ///< of the allocator's reserved memory
};

/// The memory of a step, with a layout that fits.
struct MemoryForecast {
  int64_t step = 0;
  bool fits = true;                 ///< false: not even single samples with full recomputation are within the limit
  bool completed = true;            ///< false: the dry run failed, so that the peaks are incomplete
  int64_t failed_micro_batch = -1;  ///< index in `layout` if !completed; -1: the optimizer failed
  engine::StepLayout layout;        ///< LookAheadStep::layout, or a smaller one if it does not fit
  bool empty_cache_first = false;   ///< LookAheadStep::empty_cache_first, or true for a fragmented cache
  StepPeaks peaks;
  int64_t attempts = 0;
  double cpu_seconds = 0;  ///< CPU time of the child for this step
};

/// A child process that dry-runs the next steps of a run on a virtual GPU. It runs the same micro-batches
/// in the same order, so that its allocator reaches the state that the run's allocator will have. A
/// thread of its own communicates with the child. Not thread-safe.
class LookAhead {
 public:
  /// Starts the child. `gpu` reports the same size as the run's GPU. Throws UserError (kFailed) if the child
  /// cannot be started.
  LookAhead(const Job& job, const StepConfig& step_config, const VirtualGpu& gpu);
  /// Kills the child.
  ~LookAhead();
  LookAhead(const LookAhead&) = delete;
  LookAhead& operator=(const LookAhead&) = delete;

  /// Queues a step. Steps run in the order of submission. Never blocks.
  void submit(LookAheadStep step);

  /// Waits at most `timeout` for the forecast of a submitted step. Returns nullopt if it is not available by
  /// then or the child has ended. Discards the forecasts of earlier steps.
  std::optional<MemoryForecast> get_forecast(int64_t step, std::chrono::duration<double> timeout);

  /// Returns the reason why there are no further forecasts; nullopt while the child works.
  std::optional<std::string> failure() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace vlmtrain::planner
