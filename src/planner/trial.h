#pragma once

#include <optional>

#include "planner/tried.h"
#include "vlmtrain/planner/search.h"

namespace vlmtrain::planner {

/// Rehearses whether changes of a job make it fit.
class Trial {
 public:
  /// The arguments must outlive it.
  Trial(const PlanRequest& request, const Plan& plan, Tried& tried) : request_(request), plan_(plan), tried_(tried) {}

  /// The least that the job reserves with these samples, by the choices that the search of its own plan ends with too;
  /// it stops at the first that fits. Nothing if it is more than any card has.
  std::optional<int64_t> reserved_bytes(const Job& job, const Workload& workload);

  bool fits(std::optional<int64_t> reserved_bytes) const {
    return reserved_bytes && *reserved_bytes <= plan_.limit.limit_bytes;
  }
  const PlanRequest& request() const { return request_; }
  const Plan& plan() const { return plan_; }
  Tried& tried() const { return tried_; }

 private:
  /// Share of the limit above which other passes of the tower do not help either.
  double hopeless() const;

  const PlanRequest& request_;
  const Plan& plan_;
  Tried& tried_;
};

}  // namespace vlmtrain::planner
