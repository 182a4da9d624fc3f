#pragma once

#include <vector>

#include "vlmtrain/planner/plan.h"
#include "vlmtrain/planner/rehearsal_process.h"

namespace vlmtrain::planner {

/// The memory of a rehearsal's card: more than any card has.
constexpr int64_t kUnlimitedBytes = int64_t{1} << 40;

/// The plans that were rehearsed, and the process that rehearses further ones. The virtual card has no limit, though it
/// says that it is as large as the target, so that a plan that does not fit tells how much it needs.
class RehearsedOptions {
 public:
  RehearsedOptions(const Job& job, const TargetCard& card, const Workload& workload, int64_t limit_bytes);

  /// From now on a plan has to hold this batch too. What was rehearsed before is forgotten.
  void must_hold(const SampleBatch& batch);
  /// The first of them, which probes are made with.
  const SampleBatch& worst() const { return batches_.front(); }

  /// Two steps of the worst batch, each after one of smaller samples, since sizes that change fragment the memory. A
  /// step has two micro-batches if it has several: from the second on they repeat themselves. The peaks are the largest
  /// over the batches to hold.
  Option rehearse(const Choices& choices);

  /// One step of one micro-batch, for an estimate: its peaks, and what else is wanted.
  enum class Wanted { kPeaks, kCosts, kCostsAndDetail };
  Outcome probe(const Choices& choices, Wanted wanted);
  Outcome probe(const Choices& choices, const SampleBatch& batch, Wanted wanted = Wanted::kPeaks);

  /// Says what will probably be asked for next, so that it may be done beside what is asked for before that.
  void expect(const Choices& choices);
  void expect_probe(const Choices& choices, Wanted wanted);
  void expect_probe(const Choices& choices, const SampleBatch& batch, Wanted wanted = Wanted::kPeaks);

  /// What rehearse() found; null if it was not called with these.
  const Option* find(const Choices& choices) const;

  /// Everything that rehearse() found.
  std::vector<const Option*> all() const;

  /// The whole outcome of a plan that was rehearsed.
  const Outcome& outcome_of(const Choices& choices, bool with_timeline);
  /// The batch that this outcome is of.
  const SampleBatch& batch_of(const Choices& choices) const;

  /// The reserved peak of a plan with another batch than those to hold.
  int64_t reserved_bytes(const Choices& choices, const SampleBatch& batch);

  /// The reserved peak of another job with any of these batches, of which a rank has as many samples; nothing if that
  /// is more than any card has.
  std::optional<int64_t> reserved_bytes(const Job& job, const Choices& choices,
                                        const std::vector<SampleBatch>& candidates);

  /// A step of these samples, which are a rank's: the second of two. Of more than 32 micro-batches the first 32 are
  /// rehearsed and stand for all.
  AverageStep average_step(const Choices& choices, const std::vector<data::SampleShape>& samples);

  /// Any rehearsal of the job.
  Outcome run(const RehearsalRequest& request);

  double tokens_per_step(const SampleBatch& batch) const;  ///< of all ranks
  /// What the ranks of a step tell each other that has so many micro-batches, each of which takes so long; as the last
  /// rehearsal had it.
  Communication communication(double pass_seconds, int64_t passes) const;
  /// The same of a plan that was rehearsed.
  Communication communication(const Choices& choices) const;
  const PlanningEffort& effort() const { return effort_; }

 private:
  struct Entry {
    Option option;
    Outcome outcome;
    size_t batch;  ///< place in batches_
  };

  struct Probe {
    Choices choices;
    Wanted wanted;
    Outcome outcome;
  };

  RehearsalRequest full_request(const Choices& choices, const SampleBatch& batch) const;
  static RehearsalRequest probe_request(const Choices& choices, const SampleBatch& batch, Wanted wanted);
  std::vector<Probe>::const_iterator known_probe(const Choices& choices, Wanted wanted) const;
  int64_t micro_batches_rehearsed(const Choices& choices) const;
  double step_seconds(const Choices& choices, const StepCosts& costs) const;
  std::vector<Entry>::const_iterator entry_of(const Choices& choices) const;

  Job job_;
  Workload workload_;
  Links links_;
  int64_t limit_bytes_;
  StepSums sums_;
  std::vector<SampleBatch> batches_;
  RehearsalProcess process_;
  std::vector<Entry> entries_;
  std::vector<Probe> probes_;  // with worst(), which stays the same
  PlanningEffort effort_;
};

}  // namespace vlmtrain::planner
