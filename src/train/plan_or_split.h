#pragma once

#include <cstdint>
#include <optional>
#include <utility>

namespace vlmtrain::train {

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
