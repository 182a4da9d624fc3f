#pragma once

#include <optional>
#include <vector>

#include "planner/rehearsed_options.h"
#include "planner/remedy_rehearsal.h"

namespace vlmtrain::planner {

/// Changes of a plan for a card, rehearsed on a virtual one. Bytes are reserved ones.
class CardRemedyRehearsal final : public RemedyRehearsal {
 public:
  /// The arguments must outlive it.
  CardRemedyRehearsal(const PlanRequest& request, const Plan& plan, RehearsedOptions& rehearsed);

  std::optional<int64_t> least_bytes(const Job& job, const Workload& workload, const FixedChoices& fixed) override;
  std::optional<Freed> plan_with(const FixedChoices& fixed) override;
  int64_t limit_bytes() const override { return plan_.limit.limit_bytes; }
  int64_t total_bytes(int64_t bytes) const override { return bytes + plan_.beside_bytes(); }
  std::vector<Suggestion> more_memory() const override;

  /// The smallest card that holds the plan, rehearsed on that card. Nothing where the request's own would, but for
  /// memory.limit_gb.
  std::optional<Suggestion> larger_card() const;

 private:
  /// Share of the limit above which other passes of the tower do not help either.
  double hopeless() const;
  MemoryLimit limit_with(Mode mode, std::optional<double> gigabytes) const;
  int64_t needed_bytes() const { return plan_.chosen.peaks.reserved_bytes; }

  const PlanRequest& request_;
  const Plan& plan_;
  RehearsedOptions& rehearsed_;
};

}  // namespace vlmtrain::planner
