#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

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

/// The result of make_plan_with_split_fallback().
struct PlanWithSplitFallback {
  planner::Plan plan;
  /// The configured micro-batch size, if it does not fit with the largest samples and `plan` is for
  /// micro-batches of one sample. Steps that do not fit are then split. Otherwise nullopt.
  std::optional<int64_t> oversized_micro_batch_size;
};

/// Returns the plan that `make_plan` returns for `request`. If `allow_splits`
/// (memory.allow_splits), and the configured micro-batch does not fit with the largest samples,
/// returns a plan for micro-batches of one sample instead. The plan may not fit in either case.
/// Rethrows the errors of `make_plan`.
PlanWithSplitFallback make_plan_with_split_fallback(
    planner::PlanRequest request, bool allow_splits,
    const std::function<planner::Plan(const planner::PlanRequest&)>& make_plan);

}  // namespace vlmtrain::train
