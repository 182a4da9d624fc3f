#pragma once

#include <optional>
#include <vector>

#include "planner/dry_run/cpu_dry_run.h"
#include "vlmtrain/planner/plan.h"

namespace vlmtrain::planner {

/// A StepConfig of a CPU run, and its memory with the worst batch.
struct CpuStepEstimate {
  StepConfig step_config;
  int64_t peak_tensor_bytes = 0;  ///< peak of live tensors
  int64_t peak_bytes = 0;         ///< the same with malloc's free blocks (CpuDryRun::step())
  size_t worst_batch_index = 0;   ///< in Workload::worst_batches
};

/// The search for the StepConfig of a CPU run, for one job and one workload. REQUIRES: one instance
/// at a time per process, and no CpuDryRun next to it. Not thread-safe.
class CpuConfigSearch {
 public:
  struct Settings {
    StepConstraints constraints;
    int64_t limit_bytes = 0;           ///< limit of CpuStepEstimate::peak_bytes
    int64_t max_micro_batch_size = 1;  ///< the largest size to try unless the constraints set one
  };

  /// Builds the model. Adds the number and duration of dry runs to `planning_stats`. Throws the
  /// exceptions of build_model(). `workload` and `planning_stats` must outlive the search.
  CpuConfigSearch(Job job, const Workload& workload, Settings settings, PlanningStats& planning_stats);

  /// Returns the first StepConfig that fits, in the order of make_cpu_plan(); nullopt if none fits.
  std::optional<CpuStepEstimate> find();

  /// Returns the estimate of the StepConfig with the least memory within the constraints. Stops
  /// early at the first one that fits.
  CpuStepEstimate find_min_memory_estimate();

  /// Dry-runs a StepConfig with all batches of the workload and returns the result of the worst
  /// one. Results are cached.
  CpuStepEstimate dry_run(const StepConfig& step_config);

  /// Dry-runs the StepConfig of `estimate` again and returns the detail of its peak.
  DryRunDetail compute_dry_run_detail(const CpuStepEstimate& estimate);

 private:
  std::optional<CpuStepEstimate> find_largest_fitting_micro_batch(const models::RecomputeBlockCounts& recompute);
  std::optional<CpuStepEstimate> find_estimate_with_recomputation();
  std::optional<CpuStepEstimate> find_smaller_pass_estimate();
  StepConfig make_config_with_recomputation(int64_t blocks) const;
  StepConfig make_step_config(int64_t size, const models::RecomputeBlockCounts& recompute) const;
  std::vector<int64_t> list_micro_batch_sizes() const;
  int64_t find_max_pixel_rows() const;
  int64_t num_blocks() const { return total_block_counts_.vision + total_block_counts_.language; }
  bool fits(const CpuStepEstimate& estimate) const { return estimate.peak_bytes <= settings_.limit_bytes; }

  Job job_;
  const Workload& workload_;
  Settings settings_;
  PlanningStats& planning_stats_;
  std::optional<CpuDryRun> dry_run_;
  std::vector<CpuStepEstimate> estimates_;
  models::RecomputeBlockCounts total_block_counts_;  // of the model
};

}  // namespace vlmtrain::planner
