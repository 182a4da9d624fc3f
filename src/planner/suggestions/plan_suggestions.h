#pragma once

#include <optional>
#include <vector>

#include "planner/search/cost_model.h"
#include "planner/search/plan_evaluator.h"
#include "planner/suggestions/change_evaluator.h"
#include "vlmtrain/planner/plan.h"

namespace vlmtrain::planner {

/// Returns notes on how a plan that fits could become faster, with predictions of `cost_model`.
/// Without arguments, since they need a larger GPU or batch.
std::vector<Suggestion> suggest_faster_settings(const Plan& plan, const CostModel& cost_model);

/// Returns changes with which a plan fits that does not fit otherwise, verified by dry runs, the
/// smallest change first. If there are none for a GPU, returns a note that suggests a smaller model.
/// `plan` is the plan of `request`, and `evaluator` has its dry runs.
std::vector<Suggestion> suggest_fitting_changes(const PlanRequest& request, const Plan& plan, PlanEvaluator& evaluator);

/// Evaluates changes of a plan with dry runs. Bytes are reserved bytes.
class PlanChangeEvaluator final : public ChangeEvaluator {
 public:
  /// The arguments must outlive the evaluator.
  PlanChangeEvaluator(const PlanRequest& request, const Plan& plan, PlanEvaluator& evaluator);

  std::optional<int64_t> measure_min_bytes(const Job& job, const Workload& workload,
                                           const StepConstraints& constraints) override;
  std::optional<RelaxedPlan> replan(const StepConstraints& constraints) override;
  int64_t limit_bytes() const override { return plan_.limit.limit_bytes; }
  int64_t total_bytes(int64_t bytes) const override { return bytes + plan_.limit.overhead_bytes(); }
  std::vector<Suggestion> suggest_more_memory() const override;

  /// Does the same as planner::suggest_larger_gpu(). Returns nullopt also if the request's GPU
  /// would be large enough without memory.limit_gb. REQUIRES: the plan is for a GPU.
  std::optional<Suggestion> suggest_larger_gpu() const;

 private:
  /// Returns the multiple of the limit above which a job does not fit even with smaller vision
  /// passes.
  double compute_abort_limit_ratio() const;
  MemoryLimit compute_mode_limit(MemoryMode mode, std::optional<double> gigabytes) const;
  int64_t needed_bytes() const { return plan_.best_estimate.peaks.reserved_bytes; }

  const PlanRequest& request_;
  const Plan& plan_;
  PlanEvaluator& evaluator_;
};

/// Returns the suggestion of the smallest GPU that is larger than the request's and on which the
/// job fits, verified by a dry run for that GPU. Returns nullopt if none of the first few GPUs
/// fits.
std::optional<Suggestion> suggest_larger_gpu(const PlanRequest& request, const Plan& plan);

}  // namespace vlmtrain::planner
