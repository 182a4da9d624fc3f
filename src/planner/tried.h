#pragma once

#include <map>
#include <vector>

#include "vlmtrain/planner/plan.h"
#include "vlmtrain/planner/rehearsal_process.h"

namespace vlmtrain::planner {

/// The plans that were rehearsed, and the process that rehearses further ones. The virtual card has no limit, so that a
/// plan that does not fit tells how much it needs.
class Tried {
 public:
  Tried(const Job& job, const TargetCard& card, const Workload& workload, int64_t limit_bytes);

  /// Three steps of as many micro-batches as a step has, up to two: from the second on they repeat themselves.
  Option rehearse(const Choices& choices);

  /// One step of one micro-batch, for an estimate.
  Outcome probe(const Choices& choices);

  /// What rehearse() found; null if it was not asked.
  const Option* find(const Choices& choices) const;

  /// The whole outcome of a plan that was rehearsed.
  const Outcome& outcome_of(const Choices& choices, bool with_timeline);

  /// The peaks of another job, one step.
  Outcome try_job(const Job& job, const Choices& choices, const data::SampleShape& shape);

  double tokens_per_step() const;  ///< of all ranks, with the worst samples
  const PlanningEffort& effort() const { return effort_; }

 private:
  struct Entry {
    Option option;
    Outcome outcome;
  };

  Outcome ask(const RehearsalRequest& request);
  std::vector<SampleGroup> worst_samples(int64_t count) const;
  int64_t micro_batches_rehearsed(const Choices& choices) const;
  double step_seconds(const Choices& choices, const StepCosts& costs) const;

  Job job_;
  Workload workload_;
  int64_t limit_bytes_;
  RehearsalProcess process_;
  std::vector<Entry> entries_;
  PlanningEffort effort_;
};

}  // namespace vlmtrain::planner
