#pragma once

#include <optional>
#include <vector>

#include "planner/search/cost_model.h"
#include "planner/search/plan_evaluator.h"
#include "planner/suggestions/change_evaluator.h"
#include "vlmtrain/planner/plan.h"

namespace vlmtrain::planner {

/// Returns changes that would make a plan that fits faster.
std::vector<Suggestion> suggest_faster(const Plan& plan, const CostModel& cost_model);

/// Returns changes with which a run fits that does not. Each is dry-run. The smallest change comes
/// first.
std::vector<Suggestion> suggest_changes_that_fit(const PlanRequest& request, const Plan& plan,
                                                 PlanEvaluator& evaluator);

/// Evaluates changes of a GPU plan with dry runs. Bytes are reserved bytes.
class GpuChangeEvaluator final : public ChangeEvaluator {
 public:
  /// The arguments must outlive the evaluator.
  GpuChangeEvaluator(const PlanRequest& request, const Plan& plan, PlanEvaluator& evaluator);

  std::optional<int64_t> estimate_min_bytes(const Job& job, const Workload& workload,
                                            const StepConstraints& constraints) override;
  std::optional<RelaxedPlan> replan(const StepConstraints& constraints) override;
  int64_t limit_bytes() const override { return plan_.limit.limit_bytes; }
  int64_t total_bytes(int64_t bytes) const override { return bytes + plan_.overhead_bytes(); }
  std::vector<Suggestion> suggest_more_memory() const override;

  /// Returns the smallest GPU on which the plan fits, dry-run on that GPU. Returns nullopt if the
  /// request's GPU is large enough without memory.limit_gb.
  std::optional<Suggestion> suggest_larger_gpu() const;

 private:
  /// Returns the ratio to the limit above which smaller vision passes do not help either.
  double compute_give_up_ratio() const;
  MemoryLimit compute_limit(MemoryMode mode, std::optional<double> gigabytes) const;
  int64_t needed_bytes() const { return plan_.best.peaks.reserved_bytes; }

  const PlanRequest& request_;
  const Plan& plan_;
  PlanEvaluator& evaluator_;
};

/// Returns the smallest GPU larger than the request's on which the plan fits, dry-run on that GPU.
std::optional<Suggestion> suggest_larger_gpu(const PlanRequest& request, const Plan& plan);

}  // namespace vlmtrain::planner
