#include "train/step_times.h"

#include "vlmtrain/data/shape.h"
#include "vlmtrain/planner/rehearsal_process.h"

namespace vlmtrain::train {

namespace {

/// Of which the sum is taken: a rehearsal of each takes some tenths of a second.
constexpr size_t kMostTimed = 6;

}  // namespace

void StepTimes::note(const PlannedStep& step, const DoneStep& done, double seconds) {
  if (done.failed_attempts > 0 || done.layout != step.layout) {
    newest_.clear();  // what it took is part of no step's time
    return;
  }
  TimedStep timed{.samples = {}, .seconds = seconds - step.data_wait_seconds};
  for (const auto& sample : step.batch.samples) planner::add_sample(timed.samples, data::shape_of(sample));
  newest_.push_back(std::move(timed));
  if (newest_.size() > kMostTimed) newest_.pop_front();
}

std::optional<double> StepTimes::ratio(const planner::Job& job, const planner::Choices& choices,
                                       const planner::VirtualCard& card) const {
  if (newest_.size() < kMostTimed) return std::nullopt;
  planner::RehearsalProcess process(job, card);
  double measured = 0;
  double predicted = 0;
  for (const auto& step : newest_) {
    const auto outcome = process.rehearse({.choices = choices, .steps = {step.samples}, .with_costs = true});
    if (!outcome.costs) return std::nullopt;
    measured += step.seconds;
    predicted += outcome.costs->total.seconds;
  }
  if (!(measured > 0 && predicted > 0)) return std::nullopt;
  return measured / predicted;
}

}  // namespace vlmtrain::train
