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
  int64_t step = 0;                   ///< number of the optimizer step
  std::vector<SampleGroup> samples;   ///< samples of this rank, in order
  engine::StepLayout layout;          ///< layout that the run uses if it fits
  bool empty_cache_at_start = false;  ///< the run empties the allocator's cache before the step
  int64_t limit_bytes = 0;            ///< limit of the allocator's reserved memory
};

/// The memory of a step, with a layout that fits.
struct MemoryForecast {
  int64_t step = 0;
  bool fits = true;         ///< false: even single samples with full recomputation exceed the limit
  bool is_complete = true;  ///< false: the last attempt ran out of memory, so that the peaks are incomplete
  int64_t failed_micro_batch_index = -1;  ///< index in `layout` if !is_complete; -1: the optimizer ran out of memory
  engine::StepLayout layout;              ///< LookAheadStep::layout, or a smaller one if it does not fit
  bool empty_cache_at_start = false;  ///< LookAheadStep::empty_cache_at_start, or true if the cache has to be emptied
  StepPeaks peaks;                    ///< peaks of the last attempt
  int64_t num_attempts = 0;           ///< dry runs of this step
  double cpu_seconds = 0;             ///< CPU time that the child spent on this step
};

/// A child process that dry-runs the next steps of a run on a virtual GPU. It runs the same
/// micro-batches in the same order, so that its allocator reaches the state that the run's
/// allocator will have. The object has a thread that communicates with the child. Its methods are
/// not thread-safe.
class LookAheadProcess {
 public:
  /// Starts the child and returns before it is ready. `gpu` must report the same size as the run's
  /// GPU. Throws UserError (kFailed) if the child cannot be started.
  LookAheadProcess(const Job& job, const StepConfig& step_config, const VirtualGpu& gpu);
  /// Kills the child.
  ~LookAheadProcess();
  LookAheadProcess(const LookAheadProcess&) = delete;
  LookAheadProcess& operator=(const LookAheadProcess&) = delete;

  /// Queues a step. Steps run in the order of submission. Never blocks.
  void submit(LookAheadStep step);

  /// Waits at most `timeout` for the forecast of a submitted step. Returns nullopt if the forecast
  /// is not available by then or the child has ended. Discards the forecasts of earlier steps, not
  /// of this one.
  std::optional<MemoryForecast> wait_for_forecast(int64_t step, std::chrono::duration<double> timeout);

  /// Returns why there are no further forecasts, such as the child's error; nullopt while the child
  /// runs.
  std::optional<std::string> failure_message() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace vlmtrain::planner
