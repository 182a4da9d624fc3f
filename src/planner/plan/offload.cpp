#include "planner/plan/offload.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "planner/plan/planning_stats.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/base/text_format.h"
#include "vlmtrain/engine/step/step.h"
#include "vlmtrain/models/model.h"

namespace vlmtrain::planner {

namespace {

int64_t count_ranks_per_machine(const Workload& workload) {
  return workload.world_size / workload.num_nodes;
}

std::string describe_missing_host_memory(const Plan& plan, const PlanRequest& request) {
  const auto to_machine_gigabytes = [&](int64_t bytes) {
    return to_gigabytes(bytes * count_ranks_per_machine(request.workload));
  };
  return fmt::format("needs {:.1f} GB of host memory; of {:.1f} GB, {:g} % stay free ({}={}), so {:.1f} GB are missing",
                     to_machine_gigabytes(plan.detail.host_bytes()), to_gigabytes(*request.host_memory_bytes),
                     get_margin_percent(request.mode), keys::memory::kMode, to_string(request.mode),
                     to_machine_gigabytes(compute_missing_host_bytes(plan, request)));
}

/// Returns the placements that may help the job, in ascending order of saved memory. The optimizer state of
/// adapters is small.
std::vector<engine::Offload> list_possible_offloads(const PlanRequest& request) {
  std::vector offloads{engine::Offload::kNone};
  if (!std::holds_alternative<TargetGpu>(request.target)) return offloads;
  if (!request.job.lora) offloads.push_back(engine::Offload::kOptimizer);
  if (!can_offload_weights(request.job)) return offloads;
  offloads.push_back(engine::Offload::kWeights);
  if (can_offload_gradients(request.job)) offloads.push_back(engine::Offload::kGradients);
  return offloads;
}

}  // namespace

OffloadedBytes compute_offloaded_bytes(Job job) {
  // The meta device has the defaults of the CPU.
  job.optimizer.master_weights =
      job.optimizer.choose_master_weights(/*is_cuda=*/true, job.precision == engine::Precision::kBf16);
  const auto model = build_model(job, at::kMeta);
  const engine::TrainingState training(*model, job.optimizer, /*num_gradient_groups=*/1, job.shard(), job.offload);
  return {.state = training.optimizer.host_bytes(),
          .weights = model->parameters().host_block_bytes(),
          .gradients = training.gradient_buckets.host_bytes()};
}

std::optional<int64_t> compute_usable_host_bytes(const PlanRequest& request) {
  if (!request.host_memory_bytes) return std::nullopt;
  const double share =
      (1 - get_margin_percent(request.mode) / 100) / static_cast<double>(count_ranks_per_machine(request.workload));
  return std::llround(static_cast<double>(*request.host_memory_bytes) * share);
}

int64_t compute_missing_host_bytes(const Plan& plan, const PlanRequest& request) {
  const auto usable_bytes = compute_usable_host_bytes(request);
  return usable_bytes ? std::max<int64_t>(0, plan.detail.host_bytes() - *usable_bytes) : 0;
}

void check_host_memory(const Plan& plan, const PlanRequest& request) {
  if (compute_missing_host_bytes(plan, request) == 0) return;
  const std::string_view key =
      plan.job.offload != engine::Offload::kNone ? keys::memory::kOffload : keys::memory::kPerLayerEmbeddings;
  const bool can_compress = plan.detail.host_state_bytes > 0 && plan.job.optimizer.supports_compressed_moments() &&
                            plan.job.optimizer.state_dtype != engine::OptimizerStateDtype::k8Bit && !plan.job.lora;
  throw UserError(ExitCode::kDoesNotFit,
                  fmt::format("{}: {}; set another value{}", key, describe_missing_host_memory(plan, request),
                              can_compress ? fmt::format(", or {}=8bit", keys::training::kOptimizerStates) : ""));
}

Plan make_plan_with_auto_offload(const PlanRequest& original_request,
                                 const std::function<Plan(const PlanRequest& request)>& make_plan) {
  PlanRequest request = original_request;
  std::optional<Plan> best_plan;
  std::string missing_memory_note;
  PlanningStats stats;
  const auto make_plan_with_offload = [&](engine::Offload offload) {
    request.job.offload = offload;
    Plan plan = make_plan(request);
    add_planning_stats(stats, plan.planning_stats);
    return plan;
  };
  const auto offloads = list_possible_offloads(request);
  request.with_suggestions = original_request.with_suggestions && offloads.size() == 1;
  for (const engine::Offload offload : offloads) {
    Plan plan = make_plan_with_offload(offload);
    if (offload != engine::Offload::kNone && compute_missing_host_bytes(plan, request) > 0) {
      if (plan.fits && missing_memory_note.empty()) {
        missing_memory_note = fmt::format("{}={} {}", keys::memory::kOffload, engine::to_string(offload),
                                          describe_missing_host_memory(plan, request));
      }
      continue;
    }
    const bool is_better =
        !best_plan ||
        (plan.fits && (!best_plan->fits || plan.best_estimate.step_seconds < best_plan->best_estimate.step_seconds));
    if (is_better) best_plan = std::move(plan);
    if (best_plan->fits && best_plan->best_estimate.step_config.recompute == models::RecomputeBlockCounts{}) break;
  }
  if (!best_plan->fits && original_request.with_suggestions && offloads.size() > 1) {
    request.with_suggestions = true;
    best_plan = make_plan_with_offload(engine::Offload::kNone);
    if (!missing_memory_note.empty()) best_plan->suggestions.push_back({.arguments = {}, .note = missing_memory_note});
  }
  best_plan->planning_stats = stats;
  return std::move(*best_plan);
}

}  // namespace vlmtrain::planner
