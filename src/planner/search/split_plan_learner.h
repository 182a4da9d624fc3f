#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "vlmtrain/planner/dry_run.h"
#include "vlmtrain/planner/split_plan.h"

namespace vlmtrain::planner {

using SampleShapes = std::vector<data::SampleShape>;

/// Rehearses sets of samples, and whole steps, of one job with the same choices.
class MicroBatchDryRun {
 public:
  MicroBatchDryRun() = default;
  virtual ~MicroBatchDryRun() = default;
  MicroBatchDryRun(const MicroBatchDryRun&) = delete;
  MicroBatchDryRun& operator=(const MicroBatchDryRun&) = delete;

  /// The peak of a step of two micro-batches that are this set each, from an empty cache.
  virtual std::vector<int64_t> measure_bytes(const std::vector<SampleShapes>& micro_batches) = 0;

  struct StepResults {
    StepPeaks peaks;                           ///< over all
    std::vector<double> seconds;               ///< predicted, of each; empty where nothing predicts
    double optimizer_and_exposed_seconds = 0;  ///< of these in each: the optimizer, waiting for other ranks
  };
  /// Steps one after another, as a run does them.
  virtual StepResults run(const std::vector<SampleShapes>& steps,
                          const std::vector<engine::MicroBatchSplit>& splits) = 0;
};

struct MeasuredMicroBatch {
  MicroBatchSizes sizes;
  int64_t bytes = 0;
};

/// `table` with weights by which no rehearsed set takes more than the table says where it counts: around the limit,
/// from where the sets take a good part of what there is for activations to a little beyond. Non-negative least
/// squares, raised by the largest error. REQUIRES: sets are not empty.
MemoryCostTable fit_cost_table(MemoryCostTable table, const std::vector<MeasuredMicroBatch>& micro_batches);

/// The samples that a cut has to serve.
struct SplitProblem {
  std::vector<SampleShapes> sampled_steps;  ///< samples of steps as a run draws them; at least one
  std::vector<SampleShapes> worst_steps;    ///< steps of the largest samples
  MemoryCostTable initial_table;            ///< all but the weights; its limit is the plan's
};

/// Learns a table: rehearses single samples and small sets of the drawn and the largest ones, fits, cuts the drawn
/// steps by the fit, rehearses the micro-batches that are most at the limit, fits again, and so on; at last drawn steps
/// one after another with the largest between them, of each no more than some of its micro-batches. Where these reserve
/// more than the limit, since changing sizes fragment memory, the table's limit is lowered by as much. Deterministic.
SplitPlan learn_split_plan(MicroBatchDryRun& dry_run, const SplitProblem& problem);

/// The non-negative coefficients x for which the sum of weight · (row · x − value)² over all rows is least: least
/// squares by coordinate descent (Franc, Hlaváč, Navara 2005), over columns scaled to a largest element of 1. Rows have
/// equal lengths. Columns of zeros get 0.
std::vector<double> nonnegative_least_squares(const std::vector<std::vector<double>>& rows,
                                              const std::vector<double>& values, const std::vector<double>& weights);

}  // namespace vlmtrain::planner
