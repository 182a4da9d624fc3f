#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "vlmtrain/planner/backend.h"
#include "vlmtrain/planner/plan.h"

namespace vlmtrain::planner {

/// Dry-runs StepConfigs for a planning request and keeps the results. Dry runs have no memory limit,
/// so that a StepConfig that does not fit shows how much memory it needs. Not thread-safe.
///
/// All methods that dry-run throw the exceptions of the backend, and UserError (kDoesNotFit) if
/// the samples exceed the memory of any GPU, unless stated otherwise.
class PlanEvaluator {
 public:
  /// The batches of the workload that StepConfigs have to fit at first.
  enum class WorstCases {
    kHeaviest,  ///< the one whose first sample needs the most memory; all if the backend is cheap
    kAll
  };

  struct Settings {
    Job job;
    PlanTarget target;
    Workload workload;
    int64_t limit_bytes = 0;          ///< limit of reserved bytes for StepEstimate::fits
    bool expandable_segments = true;  ///< StepConfig::expandable_segments of probes of kHeaviest
    WorstCases worst_cases = WorstCases::kHeaviest;
  };

  /// Starts the backend, and dry-runs a sample of each batch if it has to find the heaviest one.
  explicit PlanEvaluator(Settings settings);

  const BackendTraits& traits() const { return backend_->traits(); }
  /// See Backend::find_model_sizes().
  std::optional<Backend::ModelSizes> find_model_sizes() { return backend_->find_model_sizes(); }

  /// Returns the largest micro-batch size to try, unless constraints set one.
  int64_t max_micro_batch_size() const;

  /// Adds a batch that StepConfigs have to fit. Discards the results of earlier dry runs, except
  /// for probes.
  void add_worst_case(const SampleBatch& batch);
  /// Returns the first worst case, which probes use.
  const SampleBatch& first_worst_case() const { return worst_cases_.front(); }
  int64_t num_worst_cases() const { return std::ssize(worst_cases_); }

  /// Returns the estimate of a StepConfig. Unless it has been dry-run, dry-runs steps of each worst
  /// case. If the backend fragments memory, these are four: two of its samples, each after a step of
  /// smaller samples. The estimate is that of the worst case with the highest peak.
  StepEstimate dry_run(const StepConfig& step_config);

  /// The optional fields of a probe's DryRunResult. All results have peaks.
  enum class ProbeDetail {
    kPeaksOnly,           ///< neither costs nor detail
    kWithCosts,           ///< costs
    kWithCostsAndDetail,  ///< costs and detail
  };
  /// Dry-runs a probe: one step of one micro-batch of first_worst_case(). Returns the earlier
  /// result of an equal probe.
  DryRunResult probe(const StepConfig& step_config, ProbeDetail detail);
  /// Dry-runs a probe with another batch, without a cache.
  DryRunResult probe(const StepConfig& step_config, const SampleBatch& batch,
                     ProbeDetail detail = ProbeDetail::kPeaksOnly);

  /// Starts the dry run of a later dry_run(step_config) or probe() call in the background, for the
  /// first worst case, if a worker is idle. Affects only the duration, not the results.
  void prefetch(const StepConfig& step_config);
  void prefetch_probe(const StepConfig& step_config, ProbeDetail detail);
  void prefetch_probe(const StepConfig& step_config, const SampleBatch& batch,
                      ProbeDetail detail = ProbeDetail::kPeaksOnly);

  /// Returns the estimate of a StepConfig, or null if it has not been dry-run. Valid until the next
  /// call of dry_run() or add_worst_case().
  const StepEstimate* find(const StepConfig& step_config) const;

  /// Returns the estimates of all dry-run StepConfigs. Valid until the next call of dry_run() or
  /// add_worst_case().
  std::vector<const StepEstimate*> list_estimates() const;

  /// Returns the result of a StepConfig with the worst case that has the highest peak. Dry-runs it
  /// again if `with_timeline` and it has no timeline, or if it has no detail. Valid until the next
  /// call of dry_run() or add_worst_case(). REQUIRES: the StepConfig has been dry-run.
  const DryRunResult& get_dry_run_result(const StepConfig& step_config, bool with_timeline);
  /// Returns the worst case with the highest peak. Valid until the next call of add_worst_case().
  /// REQUIRES: the StepConfig has been dry-run.
  const SampleBatch& get_worst_case(const StepConfig& step_config) const;

  /// Dry-runs steps as dry_run() does, with a batch that need not be a worst case, and returns
  /// the reserved peak. Does not throw if it exceeds the memory of any GPU, but returns an
  /// incomplete peak.
  int64_t measure_reserved_bytes(const StepConfig& step_config, const SampleBatch& batch);

  /// Does the same for another job with each of `worst_batches` and returns the highest reserved
  /// peak, or nullopt if it exceeds the memory of any GPU.
  std::optional<int64_t> measure_reserved_bytes(const Job& job, const StepConfig& step_config,
                                                const std::vector<SampleBatch>& worst_batches);

  /// Dry-runs two steps of `samples`, an average step of one rank, and returns the second one's
  /// costs and the peaks of both. If a step has more than 32 micro-batches, the first 32 represent
  /// all.
  AverageStepEstimate dry_run_average_step(const StepConfig& step_config,
                                           const std::vector<data::SampleShape>& samples);

  /// Dry-runs any request with the evaluator's job and counts it in planning_stats(). Does not
  /// throw if the GPU's memory is exhausted.
  DryRunResult run_request(const DryRunRequest& request);

  /// Returns the number of tokens of all ranks together in a step of `batch`.
  double compute_tokens_per_step(const SampleBatch& batch) const;
  /// Returns the communication of a step with this many micro-batches of this duration. Uses the
  /// collectives of the last dry run.
  CommunicationEstimate predict_communication(double micro_batch_seconds, int64_t num_micro_batches) const;
  /// Returns the communication of a StepConfig. REQUIRES: it has been dry-run.
  CommunicationEstimate predict_communication(const StepConfig& step_config) const;
  /// Returns the number and duration of dry runs so far; PlanningStats::seconds is 0.
  const PlanningStats& planning_stats() const { return planning_stats_; }

 private:
  /// A dry-run StepConfig with the worst case that has the highest peak.
  struct EvaluatedConfig {
    StepEstimate estimate;
    DryRunResult result;
    size_t batch;     ///< index in worst_cases_
    bool has_detail;  ///< the detail of `result` is complete
  };

  /// A probe of first_worst_case().
  struct Probe {
    StepConfig step_config;
    ProbeDetail detail;
    DryRunResult result;
  };

  const SampleBatch& find_heaviest_batch();
  DryRunRequest make_full_request(const StepConfig& step_config, const SampleBatch& batch) const;
  DryRunRequest make_probe_request(const StepConfig& step_config, const SampleBatch& batch, ProbeDetail detail) const;
  std::vector<Probe>::const_iterator find_probe(const StepConfig& step_config, ProbeDetail detail) const;
  int64_t compute_num_dry_run_micro_batches(const StepConfig& step_config) const;
  double compute_micro_batch_seconds(const StepConfig& step_config, const StepCosts& costs) const;
  double compute_step_seconds(const StepConfig& step_config, const StepCosts& costs) const;
  std::vector<EvaluatedConfig>::const_iterator find_evaluated_config(const StepConfig& step_config) const;

  Settings settings_;
  std::optional<Interconnect> interconnect_;  // of GPUs
  std::unique_ptr<Backend> backend_;
  StepCollectives collectives_;  // of the last dry run that had any
  std::vector<SampleBatch> worst_cases_;
  std::vector<EvaluatedConfig> evaluated_configs_;
  std::vector<Probe> probes_;  // stay valid, since first_worst_case() does not change
  PlanningStats planning_stats_;
};

/// Returns the one or two StepConfigs that may need the least memory within the constraints: the
/// smallest micro-batch, all blocks recomputed, `loss_chunk_rows` rows per loss chunk. If samples
/// have images, there are two: all tiles in one vision pass, and one tile per pass. Small passes may
/// increase fragmentation by more than they save. `blocks` is the number of blocks of the model.
std::vector<StepConfig> make_min_memory_configs(const StepConstraints& constraints, const Workload& workload,
                                                const models::RecomputeBlockCounts& blocks, int64_t loss_chunk_rows);

/// Dry-runs a job with the configs, in order, and returns the lowest reserved peak. Stops at the
/// first config within `limit_bytes`. Also stops if the lowest peak so far exceeds `give_up_bytes`,
/// since dry runs with single tiles launch many kernels and take long. Returns nullopt if all
/// exceed the memory of any GPU.
std::optional<int64_t> find_min_reserved_bytes(PlanEvaluator& evaluator, const Job& job, const Workload& workload,
                                               const std::vector<StepConfig>& configs, int64_t limit_bytes,
                                               double give_up_bytes);

/// Returns StepConfigs that need less and less memory at an increasing cost in time: `step_config`, the
/// smallest micro-batch with full recomputation, then more vision passes and smaller loss chunks. Values
/// that the constraints set do not change. `tiles` is the number of tiles of a micro-batch, and
/// `blocks` the number of blocks of the model.
std::vector<StepConfig> list_smaller_pass_configs(const StepConfig& step_config, const StepConstraints& constraints,
                                                  int64_t tiles, const models::RecomputeBlockCounts& blocks,
                                                  int64_t min_loss_chunk_rows);

}  // namespace vlmtrain::planner
