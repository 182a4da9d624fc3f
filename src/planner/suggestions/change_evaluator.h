#pragma once

#include <optional>
#include <vector>

#include "vlmtrain/planner/search.h"

namespace vlmtrain::planner {

/// Rehearses whether changes of a plan that does not fit make it fit, on a card or on the host.
class ChangeEvaluator {
 public:
  /// What was asked for. All must outlive the rehearsal.
  struct Problem {
    const Job& job;
    const Workload& workload;
    const StepConstraints& constraints;
    const std::vector<SampleLimit>& sample_limits;
    const FlagSyntax& flags;
    bool has_bf16 = true;  ///< or else its 16 bits are fp16
  };

  explicit ChangeEvaluator(const Problem& problem) : problem_(problem) {}
  virtual ~ChangeEvaluator() = default;
  ChangeEvaluator(const ChangeEvaluator&) = delete;
  ChangeEvaluator& operator=(const ChangeEvaluator&) = delete;

  const Problem& problem() const { return problem_; }

  /// The least that the job takes with these samples, whatever is not fixed; it stops at the first choices that fit.
  /// Nothing if it is more than there is anywhere.
  virtual std::optional<int64_t> estimate_min_bytes(const Job& job, const Workload& workload,
                                                    const StepConstraints& constraints) = 0;

  struct RelaxedPlan {
    int64_t micro_batch_size = 0;
    int64_t total_bytes = 0;
  };
  /// The plan that is made of what was asked for where this is fixed instead; nothing if it does not fit either.
  virtual std::optional<RelaxedPlan> replan(const StepConstraints& constraints) = 0;

  virtual int64_t limit_bytes() const = 0;               ///< that what was rehearsed may take
  virtual int64_t total_bytes(int64_t bytes) const = 0;  ///< with what is taken beside it
  /// More memory for the plan as it is: a smaller margin or a higher limit, where a person keeps the run from taking
  /// what there is.
  virtual std::vector<Suggestion> suggest_more_memory() const = 0;

  bool fits(std::optional<int64_t> bytes) const { return bytes && *bytes <= limit_bytes(); }

 private:
  Problem problem_;
};

}  // namespace vlmtrain::planner
