#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "train/loop/run_setup.h"
#include "train/loop/step_prefetcher.h"
#include "train/step/look_ahead_client.h"
#include "train/step/oom_guard.h"
#include "train/step/step.h"
#include "vlmtrain/data/loader.h"
#include "vlmtrain/engine/objective.h"
#include "vlmtrain/report/event.h"

namespace vlmtrain::train {

/// Does the steps of a run: draws their samples, lets the twin say how each is to be done, guards it against a lack of
/// memory, leaves samples out that do not fit, and keeps the allocator's cache in order between steps.
class StepRunner {
 public:
  using OnEvent = std::function<void(report::EventKind, std::string message, std::vector<std::string> ids)>;

  /// All must outlive it.
  StepRunner(const Config& config, RunSetup& run, at::Device device, const RankGroup& ranks, OnEvent on_event);

  /// The samples of the next step, exactly the global batch, and how its micro-batches are to be cut.
  /// `step_seconds`: what the steps so far took.
  PlannedStep next(double step_seconds) { return prefetcher_.next(step_seconds); }

  /// Forward and backward passes, then the optimizer; over again in smaller pieces if memory runs out. A sample that
  /// does not fit is replaced in `step`, or throws a UserError (kDoesNotFit).
  CompletedStep run(PlannedStep& step, const engine::Objective& objective, uint64_t seed,
                    const LearningRatesFunction& compute_rates);

  /// After the run has taken note of the step: before the next one, what is to be known of its memory.
  void after_step(const PlannedStep& step, const CompletedStep& completed);

  /// After what used the device and no twin knows of.
  void release_device_memory();

  /// Null where the run has no twin.
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
  std::unique_ptr<LookAheadClient> look_ahead_;  // on a GPU
  StepPrefetcher prefetcher_;
  OomGuard guard_;
  int64_t next_cache_empty_step_ = 0;  // step
};

}  // namespace vlmtrain::train
