#pragma once

#include <optional>
#include <vector>

#include "planner/search/cost_model.h"
#include "planner/search/plan_evaluator.h"
#include "planner/suggestions/change_evaluator.h"
#include "vlmtrain/planner/plan.h"

namespace vlmtrain::planner {

/// What would make a plan that fits faster.
std::vector<Suggestion> suggest_faster(const Plan& plan, const CostModel& cost_model);

/// What would make a run fit that does not: each change is rehearsed, the smallest first.
std::vector<Suggestion> suggest_changes_that_fit(const PlanRequest& request, const Plan& plan,
                                                 PlanEvaluator& evaluator);

/// Changes of a plan for a card, rehearsed on a virtual one. Bytes are reserved ones.
class GpuChangeEvaluator final : public ChangeEvaluator {
 public:
  /// The arguments must outlive it.
  GpuChangeEvaluator(const PlanRequest& request, const Plan& plan, PlanEvaluator& evaluator);

  std::optional<int64_t> estimate_min_bytes(const Job& job, const Workload& workload,
                                            const StepConstraints& constraints) override;
  std::optional<RelaxedPlan> replan(const StepConstraints& constraints) override;
  int64_t limit_bytes() const override { return plan_.limit.limit_bytes; }
  int64_t total_bytes(int64_t bytes) const override { return bytes + plan_.overhead_bytes(); }
  std::vector<Suggestion> suggest_more_memory() const override;

  /// The smallest card that holds the plan, rehearsed on that card. Nothing where the request's own would, but for
  /// memory.limit_gb.
  std::optional<Suggestion> suggest_larger_gpu() const;

 private:
  /// Share of the limit above which other passes of the tower do not help either.
  double compute_give_up_ratio() const;
  MemoryLimit compute_limit(MemoryMode mode, std::optional<double> gigabytes) const;
  int64_t needed_bytes() const { return plan_.best.peaks.reserved_bytes; }

  const PlanRequest& request_;
  const Plan& plan_;
  PlanEvaluator& evaluator_;
};

/// The smallest card that is larger than the request's and holds its plan, rehearsed on that card.
std::optional<Suggestion> suggest_larger_gpu(const PlanRequest& request, const Plan& plan);

}  // namespace vlmtrain::planner
