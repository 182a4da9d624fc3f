#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "vlmtrain/engine/step_layout.h"
#include "vlmtrain/planner/dry_run.h"
#include "vlmtrain/planner/virtual_gpu.h"

namespace vlmtrain::planner {

/// A step that a run will do.
struct LookAheadStep {
  int64_t step = 0;
  std::vector<SampleGroup> samples;  ///< in order
  engine::StepLayout layout;         ///< as the run would like to do it
  bool empty_cache_first = false;    ///< the run gives the allocator's cache back before it
  int64_t limit_bytes = 0;           ///< what the allocator may reserve
};

/// What the twin found: how the step is to be done, and what it takes then.
struct MemoryForecast {
  int64_t step = 0;
  bool fits = true;                 ///< false: not even in single samples with everything recomputed, within the limit
  bool completed = true;            ///< false: the step could not be rehearsed to its end, so that the peaks say little
  int64_t failed_micro_batch = -1;  ///< where it was not: the one of `layout` that failed; -1: the optimizer
  engine::StepLayout layout;        ///< as asked for, or cut where it did not fit
  bool empty_cache_first = false;   ///< as asked for, or because the cache was too fragmented
  StepPeaks peaks;
  int64_t attempts = 0;
  double cpu_seconds = 0;  ///< of the child, for this step
};

/// A child process that does on a virtual card what a run does on its own, a few steps ahead: the same micro-batches in
/// the same order, so that its allocator is in the state that the run's will be in. Its thread talks to the child; no
/// call here waits for more than it is asked to. For one thread.
class LookAhead {
 public:
  /// `gpu` reports the same size as the run's. Throws UserError (kFailed) where the child cannot be started.
  LookAhead(const Job& job, const StepConfig& step_config, const VirtualGpu& gpu);
  /// Ends the child at once.
  ~LookAhead();
  LookAhead(const LookAhead&) = delete;
  LookAhead& operator=(const LookAhead&) = delete;

  /// Steps are rehearsed in the order in which they are announced.
  void submit(LookAheadStep step);

  /// What was found for an announced step, after at most `timeout`; nothing if it is not there by then, or if the twin
  /// has ended. Answers of earlier steps are forgotten.
  std::optional<MemoryForecast> get_forecast(int64_t step, std::chrono::duration<double> timeout);

  /// Why there will be no more answers; nothing while all is well.
  std::optional<std::string> failure() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace vlmtrain::planner
