#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "train/balance.h"
#include "train/loop/run_setup.h"
#include "train/step/look_ahead_client.h"
#include "train/step/oom_guard.h"
#include "train/step/step.h"
#include "vlmtrain/data/loader/loader.h"
#include "vlmtrain/engine/loss/objective.h"
#include "vlmtrain/report/metrics.h"

namespace vlmtrain::train {

/// Draws the batches of a run; with look-ahead some steps ahead, so that their dry runs finish in
/// time.
class StepPrefetcher {
 public:
  /// Draws the steps first_step … last_step. `look_ahead` may be null.
  StepPrefetcher(data::Loader& loader, const planner::StepConfig& step_config, const TaskBalance& tasks,
                 LookAheadClient* look_ahead, int64_t first_step, int64_t last_step);

  /// Returns the next step. `step_seconds`: duration of a recent step. Rethrows the loader's errors
  /// in the order of the steps.
  PlannedStep next(double step_seconds);

  /// Replaces `dropped` samples of the step that next() returned last by the next usable ones in
  /// the order, the same on all ranks; later steps start after those. The changed step and the
  /// steps that were already submitted to the look-ahead then run as the plan says. Rethrows the
  /// loader's errors.
  void replace(PlannedStep& step, const std::vector<int64_t>& dropped);

 private:
  struct PrefetchedStep {
    data::GlobalBatch batch;
    std::vector<data::SampleShape> shapes;
    engine::StepLayout layout;
    std::exception_ptr error;
  };

  /// Returns the seconds that it waited for the loader.
  double fill_queue();
  engine::StepLayout make_layout(data::GlobalBatch& batch, const std::vector<data::SampleShape>& shapes) const;

  data::Loader& loader_;
  planner::StepConfig step_config_;
  const TaskBalance& tasks_;
  LookAheadClient* look_ahead_;
  int64_t next_step_;
  int64_t last_step_;
  int64_t last_submitted_ = 0;        // newest step that the look-ahead has received
  int64_t last_outdated_ = 0;         // steps up to this one have other samples than the look-ahead received
  std::deque<PrefetchedStep> queue_;  // starts at next_step_
};

/// Runs the steps of a run: draws samples, applies the look-ahead's plan, recovers from
/// out-of-memory errors, replaces samples that do not fit, and empties the allocator's cache
/// between steps where needed.
class StepRunner {
 public:
  using OnEvent = std::function<void(report::EventKind, std::string message, std::vector<std::string> ids)>;

  /// All arguments must outlive the object.
  StepRunner(const Config& config, RunSetup& run, at::Device device, const RankGroup& ranks, OnEvent on_event);

  /// Returns the samples of the next step, exactly the global batch, with the split into
  /// micro-batches. `step_seconds`: duration of a recent step.
  PlannedStep next(double step_seconds) { return prefetcher_.next(step_seconds); }

  /// Runs forward and backward passes and the optimizer, again with smaller micro-batches if
  /// memory runs out. Replaces a sample that does not fit in `step`, or throws UserError
  /// (kDoesNotFit), as data.on_bad_sample says.
  CompletedStep run(PlannedStep& step, const engine::Objective& objective, uint64_t seed,
                    const LearningRatesFunction& compute_rates);

  /// Measures memory after the run has recorded the step, and prepares the allocator for the next
  /// one.
  void after_step(const PlannedStep& step, const CompletedStep& completed);

  /// Empties the allocator's cache after other uses of the device, which the look-ahead does not
  /// see.
  void release_device_memory();

  /// Returns null if the run has no look-ahead.
  const LookAheadSummary* look_ahead_summary() const { return look_ahead_ ? &look_ahead_->summary() : nullptr; }

 private:
  void warn_oversized(const PlannedStep& step) const;
  void drop_sample(PlannedStep& step, const OversizedSampleError& error);
  void on_failure(const std::string& reason, const engine::StepLayout& next);
  void empty_fragmented_cache(int64_t step, const memory::DeviceMemory& memory);

  const Config& config_;
  RunSetup& run_;
  at::Device device_;
  const engine::Consensus& consensus_;
  OnEvent on_event_;
  data::Loader loader_;
  std::unique_ptr<LookAheadClient> look_ahead_;  // null on the CPU
  StepPrefetcher prefetcher_;
  OomGuard guard_;
  int64_t next_cache_empty_step_ = 0;
};

}  // namespace vlmtrain::train
