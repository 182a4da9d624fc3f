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
#include "vlmtrain/data/loader.h"
#include "vlmtrain/engine/objective.h"
#include "vlmtrain/report/event.h"

namespace vlmtrain::train {

/// Draws the batches of a run, with a twin some steps ahead of their turn, so that it can rehearse them.
class StepPrefetcher {
 public:
  /// Steps first_step … last_step. `look_ahead` may be null.
  StepPrefetcher(data::Loader& loader, const planner::StepConfig& step_config, const TaskBalance& tasks,
                 LookAheadClient* look_ahead, int64_t first_step, int64_t last_step);

  /// The next step. `step_seconds`: what the steps so far took. Rethrows what the loader threw, in its turn.
  PlannedStep next(double step_seconds);

  /// Takes samples, by their index, out of the step that next() gave last and puts the next usable ones of the order in
  /// their place, of all processes alike;
  /// the following steps begin behind that one. The step is then done as planned, whatever was foreseen, and so are
  /// those that a twin has been told of already. Rethrows what the loader threw.
  void replace(PlannedStep& step, const std::vector<int64_t>& dropped);

 private:
  struct PrefetchedStep {
    data::GlobalBatch batch;
    std::vector<data::SampleShape> shapes;
    engine::StepLayout layout;
    std::exception_ptr error;
  };

  /// Returns how long it waited for the loader.
  double fill_queue();
  engine::StepLayout make_layout(data::GlobalBatch& batch, const std::vector<data::SampleShape>& shapes) const;

  data::Loader& loader_;
  planner::StepConfig step_config_;
  const TaskBalance& tasks_;
  LookAheadClient* look_ahead_;
  int64_t next_step_;
  int64_t last_step_;
  int64_t last_submitted_ = 0;        // the last step that the twin was told of
  int64_t last_outdated_ = 0;         // up to this step, it was told of other samples
  std::deque<PrefetchedStep> queue_;  // from next_step_ on
};

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
