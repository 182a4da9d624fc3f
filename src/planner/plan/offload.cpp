#include "planner/plan/offload.h"

#include <cmath>
#include <optional>
#include <utility>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/base/text_format.h"

namespace vlmtrain::planner {

namespace {

/// Returns the host memory that the plan lacks; 0 if it suffices or is unknown.
int64_t compute_missing_host_bytes(const Plan& plan, const PlanRequest& request) {
  if (!request.host_memory_bytes) return 0;
  const auto usable_bytes =
      std::llround(static_cast<double>(*request.host_memory_bytes) * (1 - get_margin_percent(request.mode) / 100));
  return std::max<int64_t>(0, compute_machine_host_bytes(plan) - usable_bytes);
}

std::string describe_missing_host_memory(const Plan& plan, const PlanRequest& request, int64_t missing_bytes) {
  return fmt::format("needs {:.1f} GB of host memory; of {:.1f} GB, {:g} % stay free ({}={}), so {:.1f} GB are missing",
                     to_gigabytes(compute_machine_host_bytes(plan)), to_gigabytes(*request.host_memory_bytes),
                     get_margin_percent(request.mode), keys::memory::kMode, to_string(request.mode),
                     to_gigabytes(missing_bytes));
}

void add_planning_stats(PlanningStats& stats, const PlanningStats& added) {
  stats.seconds += added.seconds;
  stats.num_dry_runs += added.num_dry_runs;
  stats.dry_run_seconds += added.dry_run_seconds;
}

}  // namespace

int64_t compute_machine_host_bytes(const Plan& plan) {
  return plan.detail.host_bytes() * plan.workload.world_size / plan.workload.num_nodes;
}

void check_host_memory(const Plan& plan, const PlanRequest& request) {
  const int64_t missing_bytes = compute_missing_host_bytes(plan, request);
  if (missing_bytes == 0) return;
  const std::string_view key =
      plan.detail.host_state_bytes > 0 ? keys::memory::kOffload : keys::memory::kPerLayerEmbeddings;
  throw UserError(ExitCode::kDoesNotFit, fmt::format("{}: {}; set another value, or for less optimizer state {}=8bit",
                                                     key, describe_missing_host_memory(plan, request, missing_bytes),
                                                     keys::training::kOptimizerStates));
}

Plan make_plan_with_auto_offload(const PlanRequest& original_request,
                                 const std::function<Plan(const PlanRequest& request)>& make_plan) {
  PlanRequest request = original_request;
  request.job.offload = engine::Offload::kNone;
  if (!std::holds_alternative<TargetGpu>(request.target)) return make_plan(request);
  request.with_suggestions = false;  // needed only if no plan fits
  Plan resident_plan = make_plan(request);
  const bool recomputes = !(resident_plan.best_estimate.step_config.recompute == models::RecomputeBlockCounts{});
  if (resident_plan.fits && !recomputes) return resident_plan;
  request.job.offload = engine::Offload::kOptimizer;
  Plan offloaded_plan = make_plan(request);
  const int64_t missing_bytes = compute_missing_host_bytes(offloaded_plan, request);
  const bool is_faster = offloaded_plan.best_estimate.step_seconds < resident_plan.best_estimate.step_seconds;
  PlanningStats stats = resident_plan.planning_stats;
  add_planning_stats(stats, offloaded_plan.planning_stats);
  const bool can_offload = offloaded_plan.fits && missing_bytes == 0;
  Plan& best_plan = can_offload && (!resident_plan.fits || is_faster) ? offloaded_plan : resident_plan;
  if (!best_plan.fits && original_request.with_suggestions) {
    request = original_request;
    request.job.offload = engine::Offload::kNone;
    best_plan = make_plan(request);
    add_planning_stats(stats, best_plan.planning_stats);
    if (offloaded_plan.fits) {
      best_plan.suggestions.push_back(
          {.arguments = {},
           .note = fmt::format("{}=optimizer {}", keys::memory::kOffload,
                               describe_missing_host_memory(offloaded_plan, request, missing_bytes))});
    }
  }
  best_plan.planning_stats = stats;
  return std::move(best_plan);
}

}  // namespace vlmtrain::planner
