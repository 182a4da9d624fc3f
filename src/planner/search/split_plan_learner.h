#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "vlmtrain/planner/dry_run.h"
#include "vlmtrain/planner/split_plan.h"

namespace vlmtrain::planner {

using SampleShapeList = std::vector<data::SampleShape>;

/// Dry runs of micro-batches and whole steps of one job with one StepConfig.
class MicroBatchDryRun {
 public:
  MicroBatchDryRun() = default;
  virtual ~MicroBatchDryRun() = default;
  MicroBatchDryRun(const MicroBatchDryRun&) = delete;
  MicroBatchDryRun& operator=(const MicroBatchDryRun&) = delete;

  /// Returns for each micro-batch the reserved peak, in bytes, of a step that starts with an empty
  /// allocator cache and consists of copies of the micro-batch
  /// (BackendTraits::num_distinct_micro_batches).
  /// REQUIRES: micro_batches is not empty.
  virtual std::vector<int64_t> measure_reserved_peak_bytes(const std::vector<SampleShapeList>& micro_batches) = 0;

  struct StepResults {
    StepPeaks peaks;              ///< maximum over all steps
    std::vector<double> seconds;  ///< predicted duration of each step; empty on the CPU
    /// The part of each step's duration that does not depend on its micro-batches: optimizer and
    /// exposed communication.
    double step_overhead_seconds = 0;
  };
  /// Dry-runs steps one after another, like a training run, with the split of the same index each.
  virtual StepResults run_steps(const std::vector<SampleShapeList>& steps,
                                const std::vector<engine::MicroBatchSplit>& splits) = 0;
};

/// A dry-run micro-batch.
struct MeasuredMicroBatch {
  MicroBatchSizes sizes;
  int64_t bytes = 0;  ///< result of MicroBatchDryRun::measure_reserved_peak_bytes()
};

/// Returns `table` with base_bytes and bytes_per_1024_units fitted to the micro-batches by
/// non-negative least squares. Then raises base_bytes by the largest error, so that no measured
/// micro-batch near table.limit_bytes exceeds the bound. REQUIRES: micro_batches is not empty.
MemoryCostTable fit_cost_table(MemoryCostTable table, const std::vector<MeasuredMicroBatch>& micro_batches);

/// The input of learn_split_plan(). Steps are those of one rank.
struct SplitPlanRequest {
  std::vector<SampleShapeList> sampled_steps;  ///< sampled from the training data, at least one step
  std::vector<SampleShapeList> worst_steps;    ///< steps of the largest samples
  MemoryCostTable initial_table;               ///< all fields except base_bytes and bytes_per_1024_units
};

/// Learns the cost table of a split. Deterministic. Its stages:
/// 1. Dry-runs single samples and small micro-batches of the sampled and the largest samples.
/// 2. Fits the table, splits the sampled steps with it, and dry-runs the micro-batches closest to
///    the limit. This is repeated a few times.
/// 3. Dry-runs a few micro-batches of each of some sampled steps, with worst steps in between. If
///    fragmentation makes them exceed the limit, the table's limit is lowered by the excess.
SplitPlan learn_split_plan(MicroBatchDryRun& dry_run, const SplitPlanRequest& split_request);

}  // namespace vlmtrain::planner
