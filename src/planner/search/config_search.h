#pragma once

#include <optional>
#include <vector>

#include "planner/search/cost_model.h"
#include "planner/search/plan_evaluator.h"
#include "vlmtrain/planner/plan.h"

namespace vlmtrain::planner {

/// Returns the divisors in ascending order.
std::vector<int64_t> find_divisors(int64_t number);

/// A search for the fastest StepConfig within constraints, for the worst batches of its evaluator.
/// Not thread-safe.
class ConfigSearch {
 public:
  /// `evaluator` and `workload` must outlive the search.
  ConfigSearch(PlanEvaluator& evaluator, const Workload& workload, const StepConstraints& constraints,
               int64_t limit_bytes);

  /// Returns the fastest config that fits, dry-run in full; nullopt if none fits.
  std::optional<StepEstimate> find();

  /// Returns the dry-run config that needs the least memory within the constraints. REQUIRES:
  /// find() was called.
  StepEstimate find_min_memory();

  /// Returns every micro-batch size without recomputation, with as few blocks as fit, and with all
  /// blocks. REQUIRES: find() was called.
  std::vector<StepEstimate> alternatives() const;

  const CostModel& cost_model() const { return *cost_model_; }

 private:
  void run_probes();
  StepConfig default_step_config() const;
  StepConfig make_step_config(int64_t size, size_t level) const;
  /// Returns the smallest micro-batch with full recomputation, the tiles in `vision_passes` passes,
  /// and this many rows per loss chunk.
  StepConfig make_smallest_config(int64_t vision_passes, int64_t loss_chunk_rows) const;
  int64_t estimate_bytes(const StepConfig& step_config) const;
  double estimate_seconds(const StepConfig& step_config) const;
  std::optional<size_t> find_min_level(int64_t size) const;
  std::optional<StepConfig> find_fastest_guess() const;
  std::optional<StepConfig> find_untried_minimum() const;
  StepEstimate dry_run(const StepConfig& step_config);
  std::optional<StepConfig> find_next_larger(const StepConfig& step_config) const;
  std::optional<StepEstimate> find_with_smaller_passes();
  std::vector<StepConfig> list_smaller_passes() const;
  bool is_allowed(const StepConfig& step_config) const;
  void dry_run_without_last_block(StepConfig step_config, memory::Component component);
  StepEstimate get_or_estimate(const StepConfig& step_config) const;

  PlanEvaluator& evaluator_;
  const Workload& workload_;
  StepConstraints constraints_;
  int64_t limit_bytes_;
  int64_t persistent_bytes_ = 0;                          // weights, gradients, optimizer state
  std::vector<int64_t> micro_batch_sizes_;                // in ascending order
  models::RecomputeBlocks all_blocks_;                    // of the model
  std::vector<models::RecomputeBlocks> recompute_order_;  // from no block to all blocks
  std::optional<StepEstimate> min_memory_;                // set if nothing fits without smaller passes
  std::optional<CostModel> cost_model_;
};

}  // namespace vlmtrain::planner
