#pragma once

#include <optional>
#include <vector>

#include "planner/search/cost_model.h"
#include "planner/search/plan_evaluator.h"
#include "vlmtrain/planner/plan.h"

namespace vlmtrain::planner {

/// The result of search_step_config().
struct StepConfigSearchResult {
  bool fits = false;
  /// The fastest StepConfig that fits. If none fits: the one that needs the least memory within the
  /// constraints. Dry-run in full.
  StepEstimate estimate;
  /// Up to three estimates for each micro-batch size: without recomputation, with as few recomputed
  /// blocks as fit, and with full recomputation. Omits sizes that are far too large. Only
  /// `estimate` if the fastest possible StepConfig fits.
  std::vector<StepEstimate> alternatives;
  std::optional<CostModel> cost_model;  ///< nullopt if the fastest possible StepConfig fits
};

/// Searches for the fastest StepConfig within constraints, for the worst batches of `evaluator`. A
/// linear CostModel, fitted to probes, guesses a StepConfig; a full dry run checks the guess and
/// corrects the model; and so on. With a cheap backend, the fastest possible StepConfig is dry-run
/// first, without probes. `limit_bytes` is the limit of reserved bytes.
StepConfigSearchResult search_step_config(PlanEvaluator& evaluator, const Workload& workload,
                                          const StepConstraints& constraints, int64_t limit_bytes);

}  // namespace vlmtrain::planner
