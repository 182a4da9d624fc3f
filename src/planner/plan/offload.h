#pragma once

#include <functional>

#include "vlmtrain/planner/plan.h"

namespace vlmtrain::planner {

/// What a rank page-locks in host memory for Job::offload, in bytes.
struct OffloadedBytes {
  int64_t state = 0;
  int64_t weights = 0;
  int64_t gradients = 0;
};

/// Returns the bytes for a GPU. Builds the model on LibTorch's meta device. Throws the exceptions of
/// build_model().
OffloadedBytes compute_offloaded_bytes(Job job);

/// Returns the host memory that a rank may page-lock: PlanRequest::host_memory_bytes, less the margin of the
/// mode, divided among the ranks of a machine; nullopt if it is unknown.
std::optional<int64_t> compute_usable_host_bytes(const PlanRequest& request);

/// Returns the host memory that a rank of the plan lacks; 0 if it suffices or is unknown.
int64_t compute_missing_host_bytes(const Plan& plan, const PlanRequest& request);

/// Throws UserError (kDoesNotFit), with the missing amount, if compute_missing_host_bytes() is not 0.
void check_host_memory(const Plan& plan, const PlanRequest& request);

/// Returns the fastest of the plans for each Job::offload that fits on the GPU and the host. More is not
/// offloaded once a plan fits that recomputes nothing. If none fits, returns the plan without offloading,
/// with suggestions. `make_plan` makes a plan for a fixed Job::offload.
Plan make_plan_with_auto_offload(const PlanRequest& request,
                                 const std::function<Plan(const PlanRequest& request)>& make_plan);

}  // namespace vlmtrain::planner
