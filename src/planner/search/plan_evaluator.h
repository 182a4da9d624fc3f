#pragma once

#include <optional>
#include <vector>

#include "vlmtrain/planner/dry_run_process.h"
#include "vlmtrain/planner/plan.h"

namespace vlmtrain::planner {

/// The dry-run plans of a request, and the process that dry-runs further ones. The virtual GPU
/// reports the target's size but has no limit, so that a plan that does not fit shows how much it
/// needs. Not thread-safe.
class PlanEvaluator {
 public:
  PlanEvaluator(const Job& job, const TargetGpu& target, const Workload& workload, int64_t limit_bytes);

  /// Adds a batch that plans have to fit. Discards earlier estimates.
  void add_worst_case(const SampleBatch& batch);
  /// Returns the first worst case, which probes use.
  const SampleBatch& worst() const { return batches_.front(); }

  /// Dry-runs two steps of each worst case, each after a step of smaller samples, since changing
  /// sizes fragment memory. A step has at most two micro-batches, since further ones repeat the
  /// second. Peaks are the maximum over the worst cases.
  StepEstimate dry_run(const StepConfig& step_config);

  /// Dry-runs one step of one micro-batch, with the requested detail.
  enum class ProbeDetail { kPeaks, kCosts, kCostsAndDetail };
  DryRunResult probe(const StepConfig& step_config, ProbeDetail detail);
  DryRunResult probe(const StepConfig& step_config, const SampleBatch& batch, ProbeDetail detail = ProbeDetail::kPeaks);

  /// Announces a probable next call, so that it overlaps with the calls before it.
  void prefetch(const StepConfig& step_config);
  void prefetch_probe(const StepConfig& step_config, ProbeDetail detail);
  void prefetch_probe(const StepConfig& step_config, const SampleBatch& batch,
                      ProbeDetail detail = ProbeDetail::kPeaks);

  /// Returns the estimate of a dry-run StepConfig, or null.
  const StepEstimate* find(const StepConfig& step_config) const;

  /// Returns all estimates.
  std::vector<const StepEstimate*> all_estimates() const;

  /// Returns the complete result of a dry-run StepConfig.
  const DryRunResult& get_result(const StepConfig& step_config, bool with_timeline);
  /// Returns the worst case of that result.
  const SampleBatch& get_batch(const StepConfig& step_config) const;

  /// Returns the reserved peak with a batch that is not a worst case.
  int64_t reserved_bytes(const StepConfig& step_config, const SampleBatch& batch);

  /// Returns the reserved peak of another job with the largest of `candidates`, or nullopt if it
  /// exceeds the memory of any GPU.
  std::optional<int64_t> reserved_bytes(const Job& job, const StepConfig& step_config,
                                        const std::vector<SampleBatch>& candidates);

  /// Dry-runs the second of two average steps of one rank. If a step has more than 32
  /// micro-batches, the first 32 represent all.
  AverageStep dry_run_average_step(const StepConfig& step_config, const std::vector<data::SampleShape>& samples);

  /// Runs any request for the job.
  DryRunResult run(const DryRunRequest& request);

  double tokens_per_step(const SampleBatch& batch) const;  ///< of all ranks
  /// Returns the communication of a step with this many micro-batches of this duration, with the
  /// collectives of the last dry run.
  Communication communication(double micro_batch_seconds, int64_t num_micro_batches) const;
  /// Returns the communication of a dry-run StepConfig.
  Communication communication(const StepConfig& step_config) const;
  const PlanningEffort& effort() const { return effort_; }

 private:
  struct Entry {
    StepEstimate estimate;
    DryRunResult result;
    size_t batch;  ///< index in batches_
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
  std::vector<Probe> probes_;  // with worst(), which does not change
  PlanningEffort effort_;
};

/// Returns the configs of which one needs the least memory: the smallest micro-batch, all `blocks`
/// recomputed, one row per loss chunk; the tower's tiles one by one or all at once, since small
/// passes may fragment memory by more than they save. Constraints are kept. `blocks` are those of
/// the model.
std::vector<StepConfig> make_min_memory_configs(const StepConstraints& constraints, const Workload& workload,
                                                const models::RecomputeBlocks& blocks);

/// Returns the lowest reserved peak of the configs for a job, or that of the first one within
/// `limit_bytes`. Stops early above `give_up_bytes`, since dry runs with single tiles launch many
/// kernels and take long. Returns nullopt if it exceeds the memory of any GPU.
std::optional<int64_t> find_min_reserved_bytes(PlanEvaluator& evaluator, const Job& job, const Workload& workload,
                                               const std::vector<StepConfig>& configs, int64_t limit_bytes,
                                               double give_up_bytes);

/// Returns the smallest micro-batch size within the constraints.
int64_t min_micro_batch_size(const StepConstraints& constraints);

}  // namespace vlmtrain::planner
