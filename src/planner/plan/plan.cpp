#include "vlmtrain/planner/plan.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <functional>

#include "planner/plan/offload.h"
#include "planner/plan/planning_stats.h"
#include "planner/search/config_search.h"
#include "planner/search/plan_split.h"
#include "planner/suggestions/plan_suggestions.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/planner/job.h"

namespace vlmtrain::planner {

namespace {

/// Throws UserError (kUsage) if the request cannot be planned.
void check_plan_request(const PlanRequest& request) {
  const Workload& workload = request.workload;
  const StepConstraints& constraints = request.constraints;
  const auto* const target = std::get_if<TargetGpu>(&request.target);
  if (target != nullptr && !supports_precision(*target->gpu, request.job.precision)) {
    throw usage_error("{} does not support {}; choose {}=fp32 or fp16, or another GPU", target->gpu->device_name,
                      engine::to_string(request.job.precision), keys::training::kPrecision);
  }
  if (target != nullptr) check_offload(request.job, /*auto_sharding=*/false);
  workload.check_divisible();
  const int64_t samples_per_rank = workload.samples_per_rank();
  if (constraints.micro_batch_size && samples_per_rank % *constraints.micro_batch_size != 0) {
    throw make_micro_batch_size_error(*constraints.micro_batch_size, samples_per_rank, workload.global_batch_size);
  }
}

/// A candidate that needs more memory than the plan's worst batch.
struct WorseBatch {
  const SampleBatch* batch = nullptr;  ///< null if there is none
  int64_t reserved_bytes = 0;          ///< reserved peak of the worst candidate
};

/// Returns the candidate that needs the most memory with the StepConfig of `best_estimate`, if it
/// needs more than `best_estimate`.
WorseBatch find_worse_batch(PlanEvaluator& evaluator, const Workload& workload, const StepEstimate& best_estimate) {
  WorseBatch worse_batch{.reserved_bytes = best_estimate.peaks.reserved_bytes};
  for (const auto& candidate : workload.worst_batches) {
    if (candidate.shapes == evaluator.first_worst_case().shapes) continue;
    const int64_t bytes = evaluator.measure_reserved_bytes(best_estimate.step_config, candidate);
    if (bytes > worse_batch.reserved_bytes) worse_batch = {&candidate, bytes};
  }
  return worse_batch;
}

/// Adds a worst batch to the evaluator and dry-runs the plan's StepConfig with it.
void replace_worst_batch(Plan& plan, PlanEvaluator& evaluator, const SampleBatch& worse_batch) {
  evaluator.add_worst_case(worse_batch);
  plan.best_estimate = evaluator.dry_run(plan.best_estimate.step_config);
  for (auto& estimate : plan.alternatives) {
    if (estimate.step_config == plan.best_estimate.step_config) estimate = plan.best_estimate;
  }
}

/// Dry-runs the largest sampled step of each rank (Plan::rank_step_peaks).
std::vector<RankStepPeaks> dry_run_largest_rank_steps(const Plan& plan, PlanEvaluator& evaluator) {
  // Bound the number of ranks and micro-batches that are dry-run, and thus the time. Not tuned.
  constexpr size_t kMaxDryRunRanks = 64;
  constexpr int64_t kMaxRankMicroBatches = 400;
  auto rank_steps = find_largest_rank_steps(plan.workload);
  std::ranges::stable_sort(rank_steps, std::greater{}, &SampledRankStep::tokens);
  if (rank_steps.size() > kMaxDryRunRanks) rank_steps.resize(kMaxDryRunRanks);
  StepConfig step_config = plan.best_estimate.step_config;
  if (plan.split) step_config.memory_cost_table = plan.split->table;
  DryRunRequest request{.step_config = step_config, .steps = {}, .empty_cache_each_step = true};
  const auto add = [&](const SampledRankStep& rank_step) {
    request.steps.push_back(group_samples(rank_step.samples));
    request.micro_batch_splits.push_back(make_step_layout(step_config, rank_step.samples).split);
  };
  if (rank_steps.empty()) return {};
  add(rank_steps.front());  // the first step fills the allocator's cache
  int64_t num_micro_batches = 0;
  for (const auto& rank_step : rank_steps) {
    if (num_micro_batches > kMaxRankMicroBatches) break;
    add(rank_step);
    num_micro_batches += request.micro_batch_splits.back().num_micro_batches();
  }
  const DryRunResult result = evaluator.run_request(request);
  std::vector<RankStepPeaks> steps;
  for (size_t i = 1; i < result.steps.size(); ++i) {
    steps.push_back(
        {.rank = rank_steps[i - 1].rank, .sampled_step_index = rank_steps[i - 1].step, .peaks = result.steps[i]});
  }
  std::ranges::sort(steps, {}, &RankStepPeaks::rank);
  return steps;
}

/// Returns the plan for the sharding in request.job (make_plan()).
Plan make_plan_with_fixed_sharding(const PlanRequest& original_request) {
  const auto start = std::chrono::steady_clock::now();
  PlanRequest request = original_request;
  apply_fixed_micro_batch_size(request.constraints, request.workload);
  request.job.world_size = request.workload.world_size;
  check_plan_request(request);
  if (request.job.offload_activations)
    request.job.max_host_activation_bytes =
        compute_max_activation_bytes(request.job, compute_usable_host_bytes(request));
  Plan plan;
  plan.model = request.model;
  plan.job = request.job;
  plan.mode = request.mode;
  plan.workload = request.workload;
  plan.target = request.target;
  plan.constraints = request.constraints;
  plan.limit = compute_memory_limit(request.target, request.mode, request.limit_gigabytes, request.workload.world_size);

  PlanEvaluator evaluator({.job = request.job,
                           .target = request.target,
                           .workload = request.workload,
                           .limit_bytes = plan.limit.limit_bytes,
                           .expandable_segments = request.constraints.expandable_segments});
  // Plans for the worst batches known so far. If another candidate needs more memory with that
  // plan, it is added. The search repeats if this candidate does not fit.
  StepConfigSearchResult search;
  while (true) {
    search = search_step_config(evaluator, request.workload, request.constraints, plan.limit.limit_bytes);
    plan.fits = search.fits;
    plan.best_estimate = search.estimate;
    plan.alternatives = search.alternatives;
    if (evaluator.num_worst_cases() == std::ssize(request.workload.worst_batches)) break;
    const WorseBatch worse_batch = find_worse_batch(evaluator, request.workload, plan.best_estimate);
    if (worse_batch.batch == nullptr) break;
    if (plan.fits && worse_batch.reserved_bytes <= plan.limit.limit_bytes) {
      replace_worst_batch(plan, evaluator, *worse_batch.batch);
      break;
    }
    evaluator.add_worst_case(*worse_batch.batch);
  }
  if (plan.fits && request.with_split_plan) {
    plan.detail = *evaluator.get_dry_run_result(plan.best_estimate.step_config, /*with_timeline=*/false).detail;
    plan_split(plan, evaluator, search.cost_model);
  }
  const DryRunResult& result = evaluator.get_dry_run_result(plan.best_estimate.step_config, request.with_timeline);
  plan.worst_batch = evaluator.get_worst_case(plan.best_estimate.step_config);
  plan.detail = *result.detail;
  plan.costs = result.costs;
  if (!request.workload.average_step_shapes.empty()) {
    plan.average_step_estimate =
        evaluator.dry_run_average_step(plan.best_estimate.step_config, request.workload.average_step_shapes);
  }
  const bool predicts_time = evaluator.traits().predicts_time;
  if (request.workload.world_size > 1 && predicts_time) {
    plan.communication_estimate = evaluator.predict_communication(plan.best_estimate.step_config);
    if (plan.fits) plan.rank_step_peaks = dry_run_largest_rank_steps(plan, evaluator);
  }
  if (plan.fits && predicts_time) {
    plan.suggestions = suggest_faster_settings(plan, *search.cost_model);
  } else if (!plan.fits && request.with_suggestions) {
    plan.suggestions = suggest_fitting_changes(request, plan, evaluator);
  }
  plan.planning_stats = evaluator.planning_stats();
  plan.planning_stats.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return plan;
}

/// Returns whether sharded blocks may be faster than `plan`, which does not shard them. Unsharding
/// blocks in each pass takes time. It pays off if nothing fits otherwise, if blocks are recomputed
/// for lack of memory, or if there are several nodes, where hybrid sharding lowers the network
/// traffic.
bool is_full_sharding_worthwhile(const Plan& plan) {
  return !plan.fits || plan.workload.num_nodes > 1 ||
         !(plan.best_estimate.step_config.recompute == models::RecomputeBlockCounts{});
}

/// Returns the plan with the fastest sharding that fits (PlanRequest::auto_sharding).
Plan make_plan_with_auto_sharding(const PlanRequest& original_request) {
  PlanRequest request = original_request;
  request.job.world_size = request.workload.world_size;
  request.with_suggestions = false;  // suggestions are needed for the best sharding only
  std::optional<Plan> best_plan;
  PlanningStats planning_stats;
  const auto make_plan_with_sharding = [&](engine::ShardingStrategy sharding) {
    request.job.sharding = sharding;
    Plan plan = make_plan_with_fixed_sharding(request);
    add_planning_stats(planning_stats, plan.planning_stats);
    return plan;
  };
  check_offload(request.job, /*auto_sharding=*/true);
  for (const auto sharding : list_possible_shardings(request.job)) {
    if (engine::shards_blocks(sharding) && best_plan && !is_full_sharding_worthwhile(*best_plan)) continue;
    Plan plan = make_plan_with_sharding(sharding);
    if (!best_plan || is_better_plan(plan, *best_plan)) best_plan = std::move(plan);
  }
  if (!best_plan->fits && original_request.with_suggestions) {
    request.with_suggestions = true;
    best_plan = make_plan_with_sharding(best_plan->job.sharding);
  }
  best_plan->planning_stats = planning_stats;
  return std::move(*best_plan);
}

/// Returns the plan for the placement of tables in request.job.
Plan make_plan_with_fixed_tables(const PlanRequest& request) {
  return request.auto_sharding && request.workload.world_size > 1 ? make_plan_with_auto_sharding(request)
                                                                  : make_plan_with_fixed_sharding(request);
}

/// Minimum gain of a table in host memory, if it fits on the device, too. Predicted step times do not
/// include reading its rows over the link: of E4B, 21.5 kB per token or a microsecond at 25 GB/s.
constexpr double kMinHostSpeedup = 1.02;

/// Returns the plan with the faster placement of tables that fits (PlanRequest::auto_per_layer_tables).
Plan make_plan_with_auto_tables(const PlanRequest& original_request) {
  PlanRequest request = original_request;
  request.job.per_layer_tables = nn::MemoryPlacement::kDevice;
  if (!std::holds_alternative<TargetGpu>(request.target) || !can_keep_tables_on_host(request.job))
    return make_plan_with_fixed_tables(request);
  PlanRequest device_request = request;
  device_request.with_suggestions = false;  // only the placement with less memory needs them
  Plan device_plan = make_plan_with_fixed_tables(device_request);
  request.job.per_layer_tables = nn::MemoryPlacement::kHost;
  if (device_plan.fits) request.with_suggestions = false;
  Plan host_plan = make_plan_with_fixed_tables(request);
  const bool is_host_faster =
      host_plan.best_estimate.step_seconds * kMinHostSpeedup < device_plan.best_estimate.step_seconds;
  const bool is_host_too_small = compute_missing_host_bytes(host_plan, request) > 0;
  const bool keeps_device = is_host_too_small || (device_plan.fits && !(host_plan.fits && is_host_faster));
  Plan& plan = keeps_device ? device_plan : host_plan;
  add_planning_stats(plan.planning_stats, (keeps_device ? host_plan : device_plan).planning_stats);
  return std::move(plan);
}

Plan make_plan_with_fixed_offload(const PlanRequest& request) {
  return request.auto_per_layer_tables ? make_plan_with_auto_tables(request) : make_plan_with_fixed_tables(request);
}

}  // namespace

Plan make_plan(const PlanRequest& request) {
  Plan plan = request.auto_offload || request.auto_offload_activations
                  ? make_plan_with_auto_offload(request, make_plan_with_fixed_offload)
                  : make_plan_with_fixed_offload(request);
  if (plan.fits) check_host_memory(plan, request);
  if (plan.fits && request.evaluation) {
    StepConfig step_config = plan.best_estimate.step_config;
    if (plan.split) step_config.memory_cost_table = plan.split->table;
    plan.evaluation = plan_evaluation_in_training(plan, step_config, *request.evaluation);
    plan.planning_stats.seconds += plan.evaluation->seconds;
  }
  return plan;
}

EvaluationPlan plan_evaluation_in_training(const Plan& plan, const StepConfig& step_config, EvaluationRequest request) {
  // Two micro-batches, so that gradients are accumulated.
  constexpr int64_t kNumMicroBatches = 2;
  request.job = plan.job;
  request.target = plan.target;
  request.training_step_config = step_config;
  request.training_samples = take_samples(plan.worst_batch.shapes, kNumMicroBatches * step_config.micro_batch_size);
  request.limit_bytes = plan.limit.limit_bytes;
  request.target_reserved_bytes = std::min(plan.peaks().reserved_bytes, plan.limit.limit_bytes);
  return plan_evaluation(request);
}

std::string Suggestion::text() const {
  if (arguments.empty()) return note;
  return fmt::format("{}: {}", fmt::join(arguments, " "), note);
}

int64_t Plan::total_bytes() const {
  if (!evaluation) return training_bytes();
  const int64_t evaluation_bytes = std::min(evaluation->peaks.reserved_bytes, limit.limit_bytes);
  return std::max(training_bytes(), evaluation_bytes + limit.overhead_bytes());
}

StepPeaks Plan::peaks() const {
  if (!split) return best_estimate.peaks;
  StepPeaks peaks =
      split->peaks.reserved_bytes > best_estimate.peaks.reserved_bytes ? split->peaks : best_estimate.peaks;
  peaks.host_activation_bytes = std::max(split->peaks.host_activation_bytes, best_estimate.peaks.host_activation_bytes);
  return peaks;
}

}  // namespace vlmtrain::planner
