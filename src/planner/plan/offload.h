#pragma once

#include <functional>

#include "vlmtrain/planner/plan.h"

namespace vlmtrain::planner {

/// Returns the host memory of the plan's machine that all its ranks page-lock.
int64_t compute_machine_host_bytes(const Plan& plan);

/// Throws UserError (kDoesNotFit), with the missing amount, if the ranks of a machine page-lock more
/// than PlanRequest::host_memory_bytes, less the margin of the mode. No effect if that is unknown.
void check_host_memory(const Plan& plan, const PlanRequest& request);

/// Returns the plan without offloading if it fits and recomputes nothing, or is faster; else the one with
/// the optimizer's state in host memory, if it fits on the GPU and the host. If none fits, returns the
/// plan without offloading, with suggestions. `make_plan` makes a plan for a fixed Job::offload.
Plan make_plan_with_auto_offload(const PlanRequest& request,
                                 const std::function<Plan(const PlanRequest& request)>& make_plan);

}  // namespace vlmtrain::planner
