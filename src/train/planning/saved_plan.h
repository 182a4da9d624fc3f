#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "vlmtrain/planner/plan.h"

namespace vlmtrain::train {

/// What a run fixed when it started, as its checkpoints keep it. A resumed run takes it from there, whatever memory is
/// free by then: other micro-batches add gradients up in another order.
struct SavedPlan {
  planner::StepConfig step_config;
  int64_t limit_bytes = 0;  ///< that the run was planned for

  /// `limit_key`: the name of the limit.
  nlohmann::ordered_json to_json(const char* limit_key) const;
  /// Throws UserError (kBadData) that names `source`.
  static SavedPlan from_json(const nlohmann::ordered_json& json, const char* limit_key, const std::string& source);
};

/// What the configuration fixes, and what was kept for all else.
planner::StepConstraints constrain_to_saved_config(const planner::StepConstraints& requested,
                                                   const planner::StepConfig& saved);

/// A plan that may be one for single samples only.
template <class Plan>
struct PlanOrSplit {
  Plan plan;
  /// The micro-batch that was asked for may not fit with the largest samples; such steps are cut.
  std::optional<int64_t> oversized_micro_batch;
};

/// `make` of the request. With allow_splits the micro-batch that was asked for is one that the largest samples may not
/// fit: what has to fit is a single sample.
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
