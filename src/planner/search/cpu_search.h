#pragma once

#include <optional>
#include <vector>

#include "planner/dry_run/cpu_dry_run.h"
#include "vlmtrain/planner/plan.h"

namespace vlmtrain::planner {

/// A way to do a step on the CPU.
struct CpuStepEstimate {
  StepConfig step_config;
  int64_t tensor_bytes = 0;  ///< that live at once, at most, with the batch that needs most
  int64_t peak_bytes = 0;    ///< with what malloc holds free (CpuDryRun::step)
  size_t batch_index = 0;    ///< which of the candidates that is
};

/// The search of a plan for the CPU, for one job and one workload. One lives at a time.
class CpuConfigSearch {
 public:
  struct Settings {
    StepConstraints constraints;
    int64_t limit_bytes = 0;           ///< for tensors
    int64_t max_micro_batch_size = 1;  ///< that is tried where none is fixed
  };

  /// `workload` must outlive it. What it takes is added to `effort`. Throws what building the model throws.
  CpuConfigSearch(Job job, const Workload& workload, Settings settings, PlanningEffort& effort);

  /// The first that fits in the order that make_cpu_plan names; nothing where none does.
  std::optional<CpuStepEstimate> find();

  /// What needs least of all that is not fixed, or the first such step that fits.
  CpuStepEstimate find_min_memory();

  /// With the batch that needs most.
  CpuStepEstimate dry_run(const StepConfig& step_config);

  /// What makes its peak.
  DryRunDetail compute_detail(const CpuStepEstimate& estimate);

 private:
  std::optional<CpuStepEstimate> find_largest_fitting(const models::RecomputeBlocks& recompute);
  std::optional<CpuStepEstimate> find_with_recomputation();
  std::optional<CpuStepEstimate> find_with_smaller_passes();
  StepConfig config_with_recomputation(int64_t blocks) const;
  StepConfig make_step_config(int64_t size, const models::RecomputeBlocks& recompute) const;
  std::vector<int64_t> list_micro_batch_sizes() const;
  int64_t max_pixel_rows() const;
  int64_t num_blocks() const { return all_blocks_.vision + all_blocks_.language; }
  bool fits(const CpuStepEstimate& estimate) const { return estimate.peak_bytes <= settings_.limit_bytes; }

  Job job_;
  const Workload& workload_;
  Settings settings_;
  PlanningEffort& effort_;
  std::optional<CpuDryRun> dry_run_;
  std::vector<CpuStepEstimate> estimates_;
  models::RecomputeBlocks all_blocks_;  // the model's
};

}  // namespace vlmtrain::planner
