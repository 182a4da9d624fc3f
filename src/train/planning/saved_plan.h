#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "vlmtrain/planner/plan.h"

namespace vlmtrain::train {

/// The choices that a run made when it started, as its checkpoints keep them. A resumed run reuses
/// them whatever memory is free by then: other micro-batches add gradients up in another order.
struct SavedPlan {
  planner::StepConfig step_config;
  int64_t limit_bytes = 0;  ///< the limit that the run was planned for

  /// Returns the state for a checkpoint. `limit_key`: name of the limit's key.
  nlohmann::ordered_json to_json(const char* limit_key) const;
  /// Parses the output of to_json(). Throws UserError (kBadData), with `source`.
  static SavedPlan from_json(const nlohmann::ordered_json& json, const char* limit_key, const std::string& source);
};

/// Returns the constraints of the configuration, completed with the saved choices.
planner::StepConstraints constrain_to_saved_config(const planner::StepConstraints& requested,
                                                   const planner::StepConfig& saved);

/// A plan, and whether it holds for single samples only.
template <class Plan>
struct PlanOrSplit {
  Plan plan;
  /// The configured micro-batch, if it may not fit with the largest samples; their steps are
  /// split.
  std::optional<int64_t> oversized_micro_batch;
};

/// Calls `make` with the request. With allow_splits a plan need only fit single samples if the
/// configured micro-batch does not fit with the largest ones.
template <class Request, class Make>
auto make_plan_or_split(Request request, bool allow_splits, const Make& make)
    -> PlanOrSplit<decltype(make(std::as_const(request)))> {
  const bool may_split = allow_splits && request.constraints.micro_batch_size;
  const bool with_suggestions = std::exchange(request.with_suggestions, request.with_suggestions && !may_split);
  auto plan = make(std::as_const(request));
  if (plan.fits || !may_split) return {std::move(plan), std::nullopt};
  const int64_t requested_size = *std::exchange(request.constraints.micro_batch_size, 1);
  request.with_suggestions = with_suggestions;
  plan = make(std::as_const(request));
  const bool fits = plan.fits;
  return {std::move(plan), fits ? std::optional{requested_size} : std::nullopt};
}

}  // namespace vlmtrain::train
