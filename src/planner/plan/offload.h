#pragma once

#include <functional>

#include "vlmtrain/planner/plan.h"

namespace vlmtrain::planner {

/// What a rank page-locks in host memory for Job::offload, in bytes.
struct OffloadedBytes {
  int64_t state = 0;
  int64_t weights = 0;
  int64_t gradients = 0;
  int64_t tables = 0;  ///< Job::per_layer_tables

  int64_t sum() const { return state + weights + gradients + tables; }
};

/// Returns the bytes for a GPU. Builds the model on LibTorch's meta device. Throws the exceptions of
/// build_model().
OffloadedBytes compute_offloaded_bytes(Job job);

/// Returns the host memory that a rank may page-lock: PlanRequest::host_memory_bytes, less the margin of the
/// mode, divided among the ranks of a machine; nullopt if it is unknown.
std::optional<int64_t> compute_usable_host_bytes(const PlanRequest& request);

/// Returns the host memory that is left for inputs of recomputed blocks; nullopt if `usable_bytes` is. Throws the
/// exceptions of build_model().
std::optional<int64_t> compute_max_activation_bytes(const Job& job, std::optional<int64_t> usable_bytes);

/// Returns the host memory that a rank of the plan lacks; 0 if it suffices or is unknown.
int64_t compute_missing_host_bytes(const Plan& plan, const PlanRequest& request);

/// Throws UserError (kDoesNotFit), with the missing amount, if compute_missing_host_bytes() is not 0.
void check_host_memory(const Plan& plan, const PlanRequest& request);

/// Returns whether `plan` fits and `other` does not, or, if both fit, is faster, or, if none fits,
/// needs less memory.
bool is_better_plan(const Plan& plan, const Plan& other);

/// Returns the fastest of the plans that fit on the GPU and the host, for each Job::offload and
/// Job::offload_activations, if they are auto. More is not offloaded once a plan fits that recomputes nothing. If
/// none fits, returns the plan with the least memory, with suggestions. `make_plan` makes a plan for fixed values.
Plan make_plan_with_auto_offload(const PlanRequest& request,
                                 const std::function<Plan(const PlanRequest& request)>& make_plan);

}  // namespace vlmtrain::planner
