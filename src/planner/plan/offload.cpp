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
                     to_machine_gigabytes(plan.host_bytes()), to_gigabytes(*request.host_memory_bytes),
                     get_margin_percent(request.mode), keys::memory::kMode, to_string(request.mode),
                     to_machine_gigabytes(compute_missing_host_bytes(plan, request)));
}

/// Returns the placements that may help the job, in ascending order of saved memory. The optimizer state of
/// adapters is small.
std::vector<engine::Offload> list_possible_offloads(const PlanRequest& request) {
  if (!request.auto_offload) return {request.job.offload};
  std::vector offloads{engine::Offload::kNone};
  if (!std::holds_alternative<TargetGpu>(request.target)) return offloads;
  if (!request.job.lora) offloads.push_back(engine::Offload::kOptimizer);
  if (!can_offload_weights(request.job)) return offloads;
  offloads.push_back(engine::Offload::kWeights);
  Job job = request.job;
  job.offload = engine::Offload::kGradients;
  const bool can_offload_sums =
      request.auto_sharding ? !list_possible_shardings(job).empty() : can_offload_gradients(job);
  if (can_offload_sums) offloads.push_back(engine::Offload::kGradients);
  return offloads;
}

/// Returns the values to try for the inputs of recomputed blocks.
std::vector<bool> list_possible_activation_offloads(const PlanRequest& request) {
  if (!request.auto_offload_activations) return {request.job.offload_activations};
  return std::holds_alternative<TargetGpu>(request.target) ? std::vector{false, true} : std::vector{false};
}

/// Returns whether 8-bit moments, which the plan does not have, suffice for the host's memory.
bool fits_with_8_bit_states(const Plan& plan, const PlanRequest& request) {
  Job job = plan.job;
  if (plan.detail.host_state_bytes == 0 || !job.optimizer.supports_compressed_moments() || job.lora) return false;
  if (job.optimizer.state_dtype == engine::OptimizerStateDtype::k8Bit) return false;
  job.optimizer.state_dtype = engine::OptimizerStateDtype::k8Bit;
  return compute_offloaded_bytes(job).sum() <= *compute_usable_host_bytes(request);
}

bool recomputes_nothing(const Plan& plan) {
  return plan.best_estimate.step_config.recompute == models::RecomputeBlockCounts{};
}

std::string format_offload(const Job& job) {
  return fmt::format("{}={}{}", keys::memory::kOffload, engine::to_string(job.offload),
                     job.offload_activations ? fmt::format(" {}=true", keys::memory::kOffloadActivations) : "");
}

}  // namespace

OffloadedBytes compute_offloaded_bytes(Job job) {
  // The meta device has the defaults of the CPU.
  job.optimizer.master_weights =
      job.optimizer.choose_master_weights(/*is_cuda=*/true, job.precision == engine::Precision::kBf16);
  const auto model = build_model(job, at::kMeta);
  const engine::TrainingState training(*model, job.optimizer, /*num_gradient_groups=*/1, job.shard(),
                                       {.offload = job.offload});
  return {.state = training.optimizer.host_bytes(),
          .weights = model->parameters().host_block_bytes(),
          .gradients = training.gradient_buckets.host_bytes(),
          .tables = model->parameters().host_table_bytes()};
}

std::optional<int64_t> compute_usable_host_bytes(const PlanRequest& request) {
  if (!request.host_memory_bytes) return std::nullopt;
  const double share =
      (1 - get_margin_percent(request.mode) / 100) / static_cast<double>(count_ranks_per_machine(request.workload));
  return std::llround(static_cast<double>(*request.host_memory_bytes) * share);
}

std::optional<int64_t> compute_max_activation_bytes(const Job& job, std::optional<int64_t> usable_bytes) {
  if (!usable_bytes) return std::nullopt;
  return std::max<int64_t>(0, *usable_bytes - compute_offloaded_bytes(job).sum());
}

int64_t compute_missing_host_bytes(const Plan& plan, const PlanRequest& request) {
  const auto usable_bytes = compute_usable_host_bytes(request);
  return usable_bytes ? std::max<int64_t>(0, plan.host_bytes() - *usable_bytes) : 0;
}

void check_host_memory(const Plan& plan, const PlanRequest& request) {
  if (compute_missing_host_bytes(plan, request) == 0) return;
  const std::string_view key =
      plan.job.offload != engine::Offload::kNone ? keys::memory::kOffload : keys::memory::kPerLayerEmbeddings;
  throw UserError(
      ExitCode::kDoesNotFit,
      fmt::format(
          "{}: {}; set {}=auto, which chooses what fits{}", key, describe_missing_host_memory(plan, request), key,
          fits_with_8_bit_states(plan, request) ? fmt::format(", or {}=8bit", keys::training::kOptimizerStates) : ""));
}

bool is_better_plan(const Plan& plan, const Plan& other) {
  if (plan.fits != other.fits) return plan.fits;
  if (!plan.fits) return plan.total_bytes() < other.total_bytes();
  return plan.best_estimate.step_seconds < other.best_estimate.step_seconds;
}

Plan make_plan_with_auto_offload(const PlanRequest& original_request,
                                 const std::function<Plan(const PlanRequest& request)>& make_plan) {
  PlanRequest request = original_request;
  request.job.world_size = request.workload.world_size;
  std::optional<Plan> best_plan;
  std::string missing_memory_note;
  PlanningStats stats;
  const auto make_plan_with_offload = [&](engine::Offload offload, bool offload_activations) {
    request.job.offload = offload;
    request.job.offload_activations = offload_activations;
    Plan plan = make_plan(request);
    add_planning_stats(stats, plan.planning_stats);
    return plan;
  };
  const auto offloads = list_possible_offloads(request);
  const auto activation_offloads = list_possible_activation_offloads(request);
  const bool has_alternatives = offloads.size() > 1 || activation_offloads.size() > 1;
  request.with_suggestions = original_request.with_suggestions && !has_alternatives;
  const auto is_done = [&] { return best_plan && best_plan->fits && recomputes_nothing(*best_plan); };
  for (const engine::Offload offload : offloads) {
    for (const bool offload_activations : activation_offloads) {
      if (is_done()) break;
      Plan plan = make_plan_with_offload(offload, offload_activations);
      // The others need more host memory than the first one.
      if (best_plan && compute_missing_host_bytes(plan, request) > 0) {
        if (plan.fits && missing_memory_note.empty()) {
          missing_memory_note =
              fmt::format("{} {}", format_offload(plan.job), describe_missing_host_memory(plan, request));
        }
        continue;
      }
      if (!best_plan || is_better_plan(plan, *best_plan)) best_plan = std::move(plan);
    }
  }
  if (!best_plan->fits && original_request.with_suggestions && has_alternatives) {
    request.with_suggestions = true;
    const Job job = best_plan->job;
    best_plan = make_plan_with_offload(job.offload, job.offload_activations);
    if (!missing_memory_note.empty()) best_plan->suggestions.push_back({.arguments = {}, .note = missing_memory_note});
  }
  best_plan->planning_stats = stats;
  return std::move(*best_plan);
}

}  // namespace vlmtrain::planner
