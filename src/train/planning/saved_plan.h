#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "vlmtrain/planner/plan.h"

namespace vlmtrain::train {

/// The step configuration that a run chose at its first start. Checkpoints store it, and resumed
/// runs reuse it even if more or less memory is free, because other micro-batches would sum
/// gradients in another order.
struct SavedPlan {
  planner::StepConfig step_config;
  int64_t limit_bytes = 0;  ///< memory limit that the run was planned for

  /// Returns the JSON object for a checkpoint. `limit_key`: name of the field of limit_bytes, which
  /// differs between CPU and GPU.
  nlohmann::ordered_json to_json(const char* limit_key) const;
  /// Parses the output of to_json(). Throws UserError (kBadData), with `source`.
  static SavedPlan from_json(const nlohmann::ordered_json& json, const char* limit_key, const std::string& source);
};

/// Returns `requested`, the constraints that the configuration sets, and the saved values of those
/// that it leaves open.
planner::StepConstraints constrain_to_saved_config(const planner::StepConstraints& requested,
                                                   const planner::StepConfig& saved);

/// The result of make_plan_with_split_fallback(). Plan is planner::Plan or planner::CpuPlan.
template <class Plan>
struct PlanWithSplitFallback {
  Plan plan;
  /// The configured micro-batch size, if it does not fit with the largest samples and `plan` is for
  /// micro-batches of one sample. Steps that do not fit are then split. Otherwise nullopt.
  std::optional<int64_t> oversized_micro_batch_size;
};

/// Returns the plan that `make_plan` returns for `request`. If `allow_splits`
/// (memory.allow_splits), and the configured micro-batch does not fit with the largest samples,
/// returns a plan for micro-batches of one sample instead. The plan may not fit in either case.
/// Rethrows the errors of `make_plan`.
template <class Request, class Make>
auto make_plan_with_split_fallback(Request request, bool allow_splits, const Make& make_plan)
    -> PlanWithSplitFallback<decltype(make_plan(std::as_const(request)))> {
  const bool may_split = allow_splits && request.constraints.micro_batch_size;
  const bool with_suggestions = std::exchange(request.with_suggestions, request.with_suggestions && !may_split);
  auto plan = make_plan(std::as_const(request));
  if (plan.fits || !may_split) return {std::move(plan), std::nullopt};
  const int64_t requested_micro_batch_size = *std::exchange(request.constraints.micro_batch_size, 1);
  request.with_suggestions = with_suggestions;
  plan = make_plan(std::as_const(request));
  const bool fits = plan.fits;
  return {std::move(plan), fits ? std::optional{requested_micro_batch_size} : std::nullopt};
}

}  // namespace vlmtrain::train
