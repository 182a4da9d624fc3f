#pragma once

#include <optional>
#include <vector>

#include "planner/search/cost_model.h"
#include "planner/search/plan_evaluator.h"
#include "vlmtrain/planner/plan.h"

namespace vlmtrain::planner {

/// Returns the divisors of a positive number in ascending order.
std::vector<int64_t> find_divisors(int64_t number);

/// A search for the fastest StepConfig within constraints, for the worst batches of its evaluator.
/// A linear CostModel, fitted to probes, guesses a StepConfig; a full dry run checks the guess and
/// corrects the model; and so on. Not thread-safe.
class ConfigSearch {
 public:
  /// `evaluator` and `workload` must outlive the search. `limit_bytes` is the limit of reserved
  /// bytes. REQUIRES: evaluator has a worst case.
  ConfigSearch(PlanEvaluator& evaluator, const Workload& workload, const StepConstraints& constraints,
               int64_t limit_bytes);

  /// Returns the fastest StepConfig that fits, dry-run in full; nullopt if none fits. Called once.
  std::optional<StepEstimate> find();

  /// Returns the estimate of the StepConfig that needs the least memory within the constraints,
  /// dry-run in full. REQUIRES: find() was called.
  StepEstimate find_min_memory_estimate();

  /// Returns up to three estimates for each micro-batch size: without recomputation, with as few
  /// recomputed blocks as fit, and with full recomputation. Omits sizes that are far too large.
  /// REQUIRES: find() was called.
  std::vector<StepEstimate> list_alternatives() const;

  /// REQUIRES: find() was called.
  const CostModel& cost_model() const { return *cost_model_; }

 private:
  void run_probes();
  StepConfig make_default_step_config() const;
  /// `size` is the micro-batch size, `recompute_level` an index in recompute_order_.
  StepConfig make_step_config(int64_t size, size_t recompute_level) const;
  /// Returns the smallest micro-batch with full recomputation, its tiles divided into
  /// `vision_passes` passes, and `loss_chunk_rows` rows per loss chunk, except for values that the
  /// constraints set.
  StepConfig make_smallest_config(int64_t vision_passes, int64_t loss_chunk_rows) const;
  /// Returns the measured value of a StepConfig that has been dry-run, otherwise a prediction.
  int64_t estimate_reserved_bytes(const StepConfig& step_config) const;
  double estimate_step_seconds(const StepConfig& step_config) const;
  std::optional<size_t> find_min_recompute_level(int64_t size) const;
  std::optional<StepConfig> find_fastest_estimated_config() const;
  std::optional<StepConfig> find_untried_min_memory_config() const;
  StepEstimate dry_run(const StepConfig& step_config);
  std::optional<StepConfig> find_next_larger_config(const StepConfig& step_config) const;
  std::optional<StepEstimate> find_smaller_pass_estimate();
  std::vector<StepConfig> list_smaller_pass_configs() const;
  bool is_allowed(const StepConfig& step_config) const;
  void dry_run_without_last_block(StepConfig step_config, memory::Component component);
  StepEstimate get_or_make_estimate(const StepConfig& step_config) const;

  PlanEvaluator& evaluator_;
  const Workload& workload_;
  StepConstraints constraints_;
  int64_t limit_bytes_;
  int64_t persistent_bytes_ = 0;                               // weights, gradients, optimizer state
  std::vector<int64_t> micro_batch_sizes_;                     // in ascending order
  models::RecomputeBlockCounts total_block_counts_;            // of the model
  std::vector<models::RecomputeBlockCounts> recompute_order_;  // from no block to all blocks
  std::optional<StepEstimate> min_memory_estimate_;            // set if nothing fits without smaller passes
  std::optional<CostModel> cost_model_;
};

}  // namespace vlmtrain::planner
