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

/// A queue of the steps of a run. With a look-ahead, batches are drawn some steps in advance, so
/// that their dry runs finish in time. Not thread-safe.
class StepPrefetcher {
 public:
  /// Prepares the steps from `first_step` to `last_step`, inclusive. `look_ahead` may be null.
  /// References and `look_ahead` must outlive the object.
  StepPrefetcher(data::Loader& loader, const planner::StepConfig& step_config, const TaskBalancer& task_balancer,
                 LookAheadClient* look_ahead, int64_t first_step, int64_t last_step);

  /// Returns the next step. `step_seconds`: duration of a recent step, which bounds the wait for
  /// the look-ahead; 0 if unknown. Rethrows the loader's errors in the order of the steps.
  /// REQUIRES: there is a next step.
  PlannedStep next(double step_seconds);

  /// Replaces samples of `step`, the step that next() returned last, with the next usable samples
  /// in the order. Later steps start after them. `dropped`: indices of the records, the same on all
  /// ranks. The changed step and the steps that the look-ahead already has then run with the run's
  /// plan. Rethrows the loader's errors.
  void replace_samples(PlannedStep& step, const std::vector<int64_t>& dropped);

 private:
  struct PrefetchedStep {
    data::GlobalBatch batch;
    std::vector<data::SampleShape> shapes;
    engine::StepLayout layout;  // of the run's plan
    std::exception_ptr error;   // of the loader; the other members are not set then
  };

  /// Draws batches until the queue is full. Returns the seconds that it waited for the loader.
  double fill_prefetch_queue();
  engine::StepLayout make_step_layout(data::GlobalBatch& batch, const std::vector<data::SampleShape>& shapes) const;

  data::Loader& loader_;
  planner::StepConfig step_config_;
  const TaskBalancer& task_balancer_;
  LookAheadClient* look_ahead_;
  int64_t next_step_;
  int64_t last_step_;
  int64_t last_submitted_step_ = 0;   // newest step that the look-ahead has received
  int64_t last_outdated_step_ = 0;    // up to this step, the look-ahead has received outdated samples
  std::deque<PrefetchedStep> queue_;  // the first entry is next_step_
};

/// The executor of a run's steps. It draws samples, applies the look-ahead's plan, recovers from
/// out-of-memory errors, replaces samples that do not fit, and empties the allocator's cache
/// between steps if needed. Not thread-safe; all ranks run the same steps.
class StepRunner {
 public:
  /// Receives events, with the ids of the samples that they are about. Called on the run's thread.
  using EventHandler = std::function<void(report::EventKind, std::string message, std::vector<std::string> ids)>;

  /// All arguments must outlive the object.
  StepRunner(const Config& config, RunSetup& run, at::Device device, const RankGroup& ranks, EventHandler on_event);

  /// Returns the next step: this rank's samples of the global batch and their split into
  /// micro-batches. See StepPrefetcher::next().
  PlannedStep next(double step_seconds) { return prefetcher_.next(step_seconds); }

  /// Runs forward and backward passes and the optimizer. If memory runs out, repeats the step with
  /// smaller micro-batches (OomGuard). If a sample does not fit at all, replaces it in `step` or
  /// throws UserError (kDoesNotFit), as data.on_bad_sample says. `objective`: loss of the step.
  /// `seed`: seed of its random stream. `compute_step_learning_rates`: called once the gradients
  /// are computed.
  CompletedStep run(PlannedStep& step, const engine::Objective& objective, uint64_t seed,
                    const LearningRatesFunction& compute_step_learning_rates);

  /// Compares the step's memory with the look-ahead's prediction, and empties a fragmented cache.
  /// Called after the run has recorded the step.
  void on_step_end(const PlannedStep& step, const CompletedStep& completed_step);

  /// Empties the allocator's cache. Called after evaluations and sample predictions, whose memory
  /// the look-ahead does not know. Does nothing on the CPU.
  void release_device_memory();

  /// Returns the results of the look-ahead so far; null if the run has none.
  const LookAheadSummary* look_ahead_summary() const { return look_ahead_ ? &look_ahead_->summary() : nullptr; }

 private:
  void warn_about_oversized_step(const PlannedStep& step) const;
  void drop_sample(PlannedStep& step, const OversizedSampleError& error);
  void on_out_of_memory(const std::string& reason, const engine::StepLayout& next);
  void empty_fragmented_cache(int64_t step, const memory::DeviceMemoryStats& memory);

  const Config& config_;
  RunSetup& run_;
  at::Device device_;
  const engine::Consensus& consensus_;
  EventHandler on_event_;
  data::Loader loader_;
  std::unique_ptr<LookAheadClient> look_ahead_;  // null on the CPU and without memory.look_ahead
  StepPrefetcher prefetcher_;
  OomGuard oom_guard_;
  int64_t next_cache_emptying_step_ = 0;  // before it, a fragmented cache is not emptied again
};

}  // namespace vlmtrain::train
