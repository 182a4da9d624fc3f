#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "train/oom_guard.h"
#include "train/run_setup.h"
#include "train/step_plan.h"
#include "train/twin_link.h"
#include "train/upcoming_steps.h"
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
  StepRunner(const Config& config, RunSetup& run, at::Device device, const RunRanks& ranks, OnEvent on_event);

  /// The samples of the next step, exactly the global batch, and how its micro-batches are to be cut.
  /// `step_seconds`: what the steps so far took.
  PlannedStep next(double step_seconds) { return upcoming_.next(step_seconds); }

  /// Forward and backward passes, then the optimizer; over again in smaller pieces if memory runs out. A sample that
  /// does not fit is replaced in `step`, or throws a UserError (kDoesNotFit).
  DoneStep run(PlannedStep& step, const engine::Objective& objective, uint64_t seed, const RatesSource& rates);

  /// After the run has taken note of the step: before the next one, what is to be known of its memory.
  void settle(const PlannedStep& step, const DoneStep& done);

  /// After what used the device and no twin knows of.
  void leave_device_as_found();

  /// Null where the run has no twin.
  const TwinSummary* twin_summary() const { return twin_ ? &twin_->summary() : nullptr; }

 private:
  void warn_of(const PlannedStep& step) const;
  void leave_out(PlannedStep& step, const SampleDoesNotFit& error);
  void on_failure(const std::string& reason, const engine::StepLayout& next);
  void empty_fragmented_cache(int64_t step, const memory::DeviceMemory& memory);

  const Config& config_;
  RunSetup& run_;
  at::Device device_;
  const engine::Consensus& consensus_;
  OnEvent on_event_;
  data::Loader loader_;
  std::unique_ptr<TwinLink> twin_;  // on a GPU
  UpcomingSteps upcoming_;
  OomGuard guard_;
  int64_t next_emptying_ = 0;  // step
};

}  // namespace vlmtrain::train
