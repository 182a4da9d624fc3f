#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "vlmtrain/planner/dry_run.h"
#include "vlmtrain/planner/split_plan.h"

namespace vlmtrain::planner {

using SampleShapes = std::vector<data::SampleShape>;

/// Dry runs of micro-batches and whole steps of one job with one StepConfig.
class MicroBatchDryRun {
 public:
  MicroBatchDryRun() = default;
  virtual ~MicroBatchDryRun() = default;
  MicroBatchDryRun(const MicroBatchDryRun&) = delete;
  MicroBatchDryRun& operator=(const MicroBatchDryRun&) = delete;

  /// Returns for each micro-batch the peak of a step with two copies of it, from an empty cache.
  virtual std::vector<int64_t> measure_bytes(const std::vector<SampleShapes>& micro_batches) = 0;

  struct StepResults {
    StepPeaks peaks;                           ///< maximum over all steps
    std::vector<double> seconds;               ///< predicted, per step; empty without a prediction
    double optimizer_and_exposed_seconds = 0;  ///< part of each step's seconds: optimizer and exposed communication
  };
  /// Runs steps one after another, like a training run.
  virtual StepResults run(const std::vector<SampleShapes>& steps,
                          const std::vector<engine::MicroBatchSplit>& splits) = 0;
};

/// A dry-run micro-batch.
struct MeasuredMicroBatch {
  MicroBatchSizes sizes;
  int64_t bytes = 0;
};

/// Fits the weights of `table` to micro-batches with non-negative least squares. Then raises them
/// by the largest error, so that no measured micro-batch near the limit exceeds the table's bound.
/// REQUIRES: micro-batches are not empty.
MemoryCostTable fit_cost_table(MemoryCostTable table, const std::vector<MeasuredMicroBatch>& micro_batches);

/// The samples that a SplitPlan has to fit.
struct SplitProblem {
  std::vector<SampleShapes> sampled_steps;  ///< sampled from the training data, at least one step
  std::vector<SampleShapes> worst_steps;    ///< steps of the largest samples
  MemoryCostTable initial_table;            ///< everything but the weights; has the plan's limit
};

/// Learns the table of a split. Dry-runs single samples and small micro-batches of the sampled and
/// largest samples, fits, splits the sampled steps, dry-runs the micro-batches closest to the
/// limit, and repeats. Finally it runs sampled steps with the largest ones in between, a few
/// micro-batches of each. If fragmentation makes these exceed the limit, the table's limit is
/// lowered by the excess. Deterministic.
SplitPlan learn_split_plan(MicroBatchDryRun& dry_run, const SplitProblem& problem);

/// Returns the x ≥ 0 that minimizes the sum of weight · (row · x − value)² over all rows, by
/// coordinate descent (Franc, Hlaváč, Navara 2005). Columns are scaled to a maximum of 1; columns
/// of zeros get 0. REQUIRES: rows of equal length.
std::vector<double> nonnegative_least_squares(const std::vector<std::vector<double>>& rows,
                                              const std::vector<double>& values, const std::vector<double>& weights);

}  // namespace vlmtrain::planner
