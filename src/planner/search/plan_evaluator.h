#pragma once

#include <optional>
#include <vector>

#include "vlmtrain/planner/dry_run_process.h"
#include "vlmtrain/planner/plan.h"

namespace vlmtrain::planner {

/// The memory of a rehearsal's card: more than any card has.
constexpr int64_t kUnlimitedBytes = int64_t{1} << 40;

/// The plans that were rehearsed, and the process that rehearses further ones. The virtual card has no limit, though it
/// says that it is as large as the target, so that a plan that does not fit tells how much it needs.
class PlanEvaluator {
 public:
  PlanEvaluator(const Job& job, const TargetGpu& target, const Workload& workload, int64_t limit_bytes);

  /// From now on a plan has to hold this batch too. What was rehearsed before is forgotten.
  void add_worst_case(const SampleBatch& batch);
  /// The first of them, which probes are made with.
  const SampleBatch& worst() const { return batches_.front(); }

  /// Two steps of the worst batch, each after one of smaller samples, since sizes that change fragment the memory. A
  /// step has two micro-batches if it has several: from the second on they repeat themselves. The peaks are the largest
  /// over the batches to hold.
  StepEstimate dry_run(const StepConfig& step_config);

  /// One step of one micro-batch, for an estimate: its peaks, and what else is wanted.
  enum class ProbeDetail { kPeaks, kCosts, kCostsAndDetail };
  DryRunResult probe(const StepConfig& step_config, ProbeDetail detail);
  DryRunResult probe(const StepConfig& step_config, const SampleBatch& batch, ProbeDetail detail = ProbeDetail::kPeaks);

  /// Says what will probably be asked for next, so that it may be done beside what is asked for before that.
  void prefetch(const StepConfig& step_config);
  void prefetch_probe(const StepConfig& step_config, ProbeDetail detail);
  void prefetch_probe(const StepConfig& step_config, const SampleBatch& batch,
                      ProbeDetail detail = ProbeDetail::kPeaks);

  /// What dry_run() found; null if it was not called with these.
  const StepEstimate* find(const StepConfig& step_config) const;

  /// Everything that dry_run() found.
  std::vector<const StepEstimate*> all_estimates() const;

  /// The whole outcome of a plan that was rehearsed.
  const DryRunResult& get_result(const StepConfig& step_config, bool with_timeline);
  /// The batch that this outcome is of.
  const SampleBatch& get_batch(const StepConfig& step_config) const;

  /// The reserved peak of a plan with another batch than those to hold.
  int64_t reserved_bytes(const StepConfig& step_config, const SampleBatch& batch);

  /// The reserved peak of another job with any of these batches, of which a rank has as many samples; nothing if that
  /// is more than any card has.
  std::optional<int64_t> reserved_bytes(const Job& job, const StepConfig& step_config,
                                        const std::vector<SampleBatch>& candidates);

  /// A step of these samples, which are a rank's: the second of two. Of more than 32 micro-batches the first 32 are
  /// rehearsed and stand for all.
  AverageStep dry_run_average_step(const StepConfig& step_config, const std::vector<data::SampleShape>& samples);

  /// Any rehearsal of the job.
  DryRunResult run(const DryRunRequest& request);

  double tokens_per_step(const SampleBatch& batch) const;  ///< of all ranks
  /// What the ranks of a step tell each other that has so many micro-batches, each of which takes so long; as the last
  /// rehearsal had it.
  Communication communication(double micro_batch_seconds, int64_t num_micro_batches) const;
  /// The same of a plan that was rehearsed.
  Communication communication(const StepConfig& step_config) const;
  const PlanningEffort& effort() const { return effort_; }

 private:
  struct Entry {
    StepEstimate estimate;
    DryRunResult result;
    size_t batch;  ///< place in batches_
  };

  struct Probe {
    StepConfig step_config;
    ProbeDetail detail;
    DryRunResult result;
  };

  DryRunRequest make_full_request(const StepConfig& step_config, const SampleBatch& batch) const;
  static DryRunRequest make_probe_request(const StepConfig& step_config, const SampleBatch& batch, ProbeDetail detail);
  std::vector<Probe>::const_iterator find_probe(const StepConfig& step_config, ProbeDetail detail) const;
  int64_t num_dry_run_micro_batches(const StepConfig& step_config) const;
  double step_seconds(const StepConfig& step_config, const StepCosts& costs) const;
  std::vector<Entry>::const_iterator find_entry(const StepConfig& step_config) const;

  Job job_;
  Workload workload_;
  Interconnect interconnect_;
  int64_t limit_bytes_;
  StepCollectives collectives_;
  std::vector<SampleBatch> batches_;
  DryRunProcess process_;
  std::vector<Entry> entries_;
  std::vector<Probe> probes_;  // with worst(), which stays the same
  PlanningEffort effort_;
};

/// The choices of which one needs least: the smallest micro-batch, everything recomputed, one row of the loss at a
/// time; the tower's tiles one by one or all at once, for what its passes leave behind may be more than what they save.
/// What a person fixed is as it is. `blocks` are the model's.
std::vector<StepConfig> make_min_memory_configs(const StepConstraints& constraints, const Workload& workload,
                                                const models::RecomputeBlocks& blocks);

/// The least that these reserve of a job, as rehearsed: of the first that is within `limit_bytes`, or of all. Ends
/// early where what was found is above `give_up_bytes`: tiles one by one are many launches, so a rehearsal takes long.
/// Nothing if it is more than any card has.
std::optional<int64_t> find_min_reserved_bytes(PlanEvaluator& evaluator, const Job& job, const Workload& workload,
                                               const std::vector<StepConfig>& configs, int64_t limit_bytes,
                                               double give_up_bytes);

/// The smallest micro-batch that a person leaves the planner.
int64_t min_micro_batch_size(const StepConstraints& constraints);

}  // namespace vlmtrain::planner
