#include "train/step_times.h"

#include "vlmtrain/data/shape.h"
#include "vlmtrain/planner/rehearsal_process.h"

namespace vlmtrain::train {

namespace {

/// Of which the sum is taken: a rehearsal of each takes some tenths of a second.
constexpr size_t kMaxTimedSteps = 6;

}  // namespace

void StepTimes::record(const PlannedStep& step, const CompletedStep& completed, double seconds) {
  if (completed.failed_attempts > 0 || completed.layout != step.layout) {
    steps_.clear();  // what it took is part of no step's time
    return;
  }
  TimedStep timed_step{.samples = {}, .seconds = seconds - step.data_wait_seconds};
  for (const auto& sample : step.batch.samples) planner::add_sample(timed_step.samples, data::get_shape(sample));
  steps_.push_back(std::move(timed_step));
  if (steps_.size() > kMaxTimedSteps) steps_.pop_front();
}

std::optional<double> StepTimes::compute_ratio(const planner::Job& job, const planner::StepConfig& step_config,
                                               const planner::VirtualGpu& virtual_gpu) const {
  if (steps_.size() < kMaxTimedSteps) return std::nullopt;
  planner::DryRunProcess process(job, virtual_gpu);
  double measured_seconds = 0;
  double predicted_seconds = 0;
  for (const auto& step : steps_) {
    const auto outcome = process.dry_run({.step_config = step_config, .steps = {step.samples}, .with_costs = true});
    if (!outcome.costs) return std::nullopt;
    measured_seconds += step.seconds;
    predicted_seconds += outcome.costs->total.seconds;
  }
  if (!(measured_seconds > 0 && predicted_seconds > 0)) return std::nullopt;
  return measured_seconds / predicted_seconds;
}

}  // namespace vlmtrain::train
