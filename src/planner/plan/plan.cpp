#include "vlmtrain/planner/plan.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <functional>

#include "planner/plan/plan_json.h"
#include "planner/search/config_search.h"
#include "planner/search/plan_split.h"
#include "planner/suggestions/gpu_suggestions.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/planner/job.h"

namespace vlmtrain::planner {

namespace {

/// Throws UserError (kUsage) if the request cannot be planned.
void check_plan_request(const Job& job, const TargetGpu& target, const Workload& workload,
                        const StepConstraints& constraints) {
  if (!supports_precision(*target.gpu, job.precision)) {
    throw usage_error("{} does not support {}; choose {}=fp32 or fp16, or another GPU", target.gpu->device_name,
                      engine::to_string(job.precision), keys::training::kPrecision);
  }
  workload.check_divisible();
  const int64_t samples_per_rank = workload.samples_per_rank();
  if (constraints.micro_batch_size && samples_per_rank % *constraints.micro_batch_size != 0) {
    throw usage_error(
        "a micro-batch of {} does not divide the {} samples per rank of the global batch of {}; choose one of {}, or "
        "auto",
        *constraints.micro_batch_size, samples_per_rank, workload.global_batch_size,
        fmt::join(find_divisors(samples_per_rank), ", "));
  }
}

/// Returns the candidate whose first sample needs the most memory. The search begins with it.
const SampleBatch& find_heaviest_batch(PlanEvaluator& evaluator, const std::vector<SampleBatch>& candidates,
                                       const StepConfig& step_config) {
  size_t heaviest_batch_index = 0;
  int64_t max_bytes = 0;
  for (size_t i = 0; candidates.size() > 1 && i < candidates.size(); ++i) {
    if (i + 1 < candidates.size()) evaluator.prefetch_probe(step_config, candidates[i + 1]);
    const int64_t bytes = evaluator.probe(step_config, candidates[i]).compute_max_peaks().reserved_bytes;
    if (bytes > max_bytes) heaviest_batch_index = i;
    max_bytes = std::max(max_bytes, bytes);
  }
  return candidates[heaviest_batch_index];
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
  add(rank_steps.front());  // the first step allocates the optimizer state
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
  check_plan_request(request.job, request.target, request.workload, request.constraints);
  Plan plan;
  plan.model = request.model;
  plan.job = request.job;
  plan.mode = request.mode;
  plan.workload = request.workload;
  plan.target = request.target;
  plan.constraints = request.constraints;
  plan.limit = compute_memory_limit(request.target, request.mode, request.limit_gigabytes, request.workload.world_size);

  PlanEvaluator evaluator(request.job, request.target, request.workload, plan.limit.limit_bytes);
  evaluator.add_worst_case(
      find_heaviest_batch(evaluator, request.workload.worst_batches,
                          {.recompute = {}, .expandable_segments = request.constraints.expandable_segments}));
  // Plans for the worst batches known so far. If another candidate needs more memory with that
  // plan, it is added. The search repeats if this candidate does not fit.
  std::optional<ConfigSearch> search;
  for (size_t num_batches = 1;; ++num_batches) {
    search.emplace(evaluator, request.workload, request.constraints, plan.limit.limit_bytes);
    const auto estimate = search->find();
    plan.fits = estimate.has_value();
    plan.best_estimate = estimate ? *estimate : search->find_min_memory_estimate();
    plan.alternatives = search->list_alternatives();
    if (num_batches == request.workload.worst_batches.size()) break;
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
    plan_split(plan, evaluator, search->cost_model());
  }
  const DryRunResult& result = evaluator.get_dry_run_result(plan.best_estimate.step_config, request.with_timeline);
  plan.worst_batch = evaluator.get_worst_case(plan.best_estimate.step_config);
  plan.detail = *result.detail;
  plan.costs = *result.costs;
  if (!request.workload.average_step_shapes.empty()) {
    plan.average_step_estimate =
        evaluator.dry_run_average_step(plan.best_estimate.step_config, request.workload.average_step_shapes);
  }
  if (request.workload.world_size > 1) {
    plan.communication_estimate = evaluator.predict_communication(plan.best_estimate.step_config);
    if (plan.fits) plan.rank_step_peaks = dry_run_largest_rank_steps(plan, evaluator);
  }
  if (plan.fits) {
    plan.suggestions = suggest_faster_settings(plan, search->cost_model());
  } else if (request.with_suggestions) {
    plan.suggestions = suggest_fitting_changes(request, plan, evaluator);
  }
  plan.planning_stats = evaluator.planning_stats();
  plan.planning_stats.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return plan;
}

/// Returns whether `plan` fits and `other` does not, or, if both fit, is faster, or, if none fits,
/// needs less memory.
bool is_better_plan(const Plan& plan, const Plan& other) {
  if (plan.fits != other.fits) return plan.fits;
  if (!plan.fits) return plan.total_bytes() < other.total_bytes();
  return plan.best_estimate.step_seconds < other.best_estimate.step_seconds;
}

/// Returns whether sharded blocks may be faster than `plan`, which does not shard them. Unsharding
/// blocks in each pass takes time. It pays off if nothing fits otherwise, if blocks are recomputed
/// for lack of memory, or if there are several nodes, where hybrid sharding lowers the network
/// traffic.
bool is_full_sharding_worthwhile(const Plan& plan) {
  return !plan.fits || plan.workload.num_nodes > 1 ||
         !(plan.best_estimate.step_config.recompute == models::RecomputeBlockCounts{});
}

}  // namespace

Plan make_plan(const PlanRequest& original_request) {
  if (!original_request.auto_sharding || original_request.workload.world_size == 1)
    return make_plan_with_fixed_sharding(original_request);
  PlanRequest request = original_request;
  request.job.world_size = request.workload.world_size;
  request.with_suggestions = false;  // suggestions are needed for the best sharding only
  std::optional<Plan> best_plan;
  PlanningStats planning_stats;
  const auto make_plan_with_sharding = [&](engine::ShardingStrategy sharding) {
    request.job.sharding = sharding;
    Plan plan = make_plan_with_fixed_sharding(request);
    planning_stats.seconds += plan.planning_stats.seconds;
    planning_stats.num_dry_runs += plan.planning_stats.num_dry_runs;
    planning_stats.dry_run_seconds += plan.planning_stats.dry_run_seconds;
    return plan;
  };
  for (const auto sharding : list_possible_shardings(request.job)) {
    if (engine::shards_blocks(sharding) && !is_full_sharding_worthwhile(*best_plan)) continue;
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

namespace {

nlohmann::ordered_json make_estimate_json(const StepEstimate& estimate, const Plan& plan) {
  nlohmann::ordered_json json{
      {"micro_batch_size", estimate.step_config.micro_batch_size},
      {"gradient_accumulation_steps", plan.workload.samples_per_rank() / estimate.step_config.micro_batch_size},
      {"recompute", make_recompute_blocks_json(estimate.step_config.recompute)},
      {"vision_tiles_per_pass", estimate.step_config.vision_tiles_per_pass},
      {"loss_chunk_rows", estimate.step_config.loss_chunk_rows},
      {"copies_ahead", estimate.step_config.copies_ahead},
      {"reserved_peak_bytes", estimate.peaks.reserved_bytes},
      {"total_bytes", plan.total_bytes(estimate)},
      {"step_seconds", estimate.step_seconds},
      {"tokens_per_second", estimate.tokens_per_second},
      {"fits", estimate.fits},
      {"from_dry_run", estimate.is_from_dry_run}};
  io::add_field_aliases(json, {{"from_dry_run", "rehearsed"}});
  return json;
}

nlohmann::ordered_json make_memory_json(const Plan& plan) {
  const StepPeaks peaks = plan.peaks();
  auto json = make_peak_bytes_json(plan.detail.peak);
  json.update(
      {{"workspace_bytes", plan.detail.peak.bytes_by_component[static_cast<size_t>(memory::Component::kWorkspace)]},
       {"context_bytes", plan.limit.context_bytes},
       {"communication_bytes", plan.limit.communication_bytes},
       {"allocated_peak_bytes", peaks.allocated_bytes},
       {"reserved_peak_bytes", peaks.reserved_bytes},
       {"total_bytes", plan.total_bytes()},
       {"fragmentation_bytes", peaks.reserved_bytes - peaks.allocated_bytes},
       {"context_measured", plan.target.is_context_measured}});
  return json;
}

nlohmann::ordered_json make_peak_json(const memory::MemoryPeak& peak) {
  return {{"during", memory::to_string(peak.tag.component)},
          {"block", peak.tag.block < 0 ? nlohmann::ordered_json() : nlohmann::ordered_json(peak.tag.block)},
          {"pass", peak.is_backward ? "backward" : "forward"}};
}

nlohmann::ordered_json make_cost_json(const OperationCost& cost) {
  nlohmann::ordered_json json{{"matmul_operations", cost.matmul_flops},
                              {"attention_operations", cost.attention_flops},
                              {"bytes_moved", cost.bytes_moved},
                              {"launches", cost.num_kernel_launches},
                              {"seconds", cost.seconds}};
  io::add_field_aliases(json, {{"matmul_operations", "product_operations"}});
  return json;
}

nlohmann::ordered_json make_average_step_json(const AverageStepEstimate& average, const Plan& plan) {
  auto samples = nlohmann::ordered_json::array();
  int64_t tokens = 0;
  for (const auto& [shape, count] : average.samples) {
    samples.push_back({{"samples", count},
                       {"images", shape.num_images + shape.num_volumes},
                       {"video_frames", shape.video_frames},
                       {"tokens", shape.tokens}});
    tokens += count * shape.tokens;
  }
  return {{"samples", samples},
          {"tokens_per_sample", static_cast<double>(tokens) / static_cast<double>(plan.workload.samples_per_rank())},
          {"allocated_peak_bytes", average.peaks.allocated_bytes},
          {"reserved_peak_bytes", average.peaks.reserved_bytes},
          {"step_seconds", average.step_seconds},
          {"tokens_per_second", average.tokens_per_second},
          {"samples_per_second", average.samples_per_second}};
}

/// Returns the object `ranks` of plan.json, the rank with the highest peak first; null if it is
/// empty.
nlohmann::ordered_json make_rank_steps_json(std::vector<RankStepPeaks> steps) {
  if (steps.empty()) return nullptr;
  std::ranges::stable_sort(steps, std::greater{}, [](const RankStepPeaks& step) { return step.peaks.reserved_bytes; });
  auto json = nlohmann::ordered_json::array();
  for (const auto& step : steps) {
    nlohmann::ordered_json step_json{{"rank", step.rank},
                                     {"sampled_step", step.sampled_step_index},
                                     {"allocated_peak_bytes", step.peaks.allocated_bytes},
                                     {"reserved_peak_bytes", step.peaks.reserved_bytes}};
    io::add_field_aliases(step_json, {{"sampled_step", "drawn_step"}});
    json.push_back(std::move(step_json));
  }
  return json;
}

}  // namespace

std::string Suggestion::text() const {
  if (arguments.empty()) return note;
  return fmt::format("{}: {}", fmt::join(arguments, " "), note);
}

StepPeaks Plan::peaks() const {
  return split && split->peaks.reserved_bytes > best_estimate.peaks.reserved_bytes ? split->peaks : best_estimate.peaks;
}

nlohmann::ordered_json Plan::to_json() const {
  auto alternatives_json = nlohmann::ordered_json::array();
  for (const auto& estimate : alternatives) alternatives_json.push_back(make_estimate_json(estimate, *this));
  auto json = make_plan_summary_json({.fits = fits,
                                      .model = model,
                                      .job = job,
                                      .mode = mode,
                                      .step_config = best_estimate.step_config,
                                      .workload = workload,
                                      .worst_batch = worst_batch,
                                      .detail = detail,
                                      .suggestions = suggestions,
                                      .planning_stats = planning_stats});
  json.update(
      {{"expandable_segments", best_estimate.step_config.expandable_segments},
       {"copies_ahead", best_estimate.step_config.copies_ahead},
       {"gpu", target.description},
       {"gpu_bytes", limit.allowed_gpu_bytes},
       {"other_processes_bytes", target.other_process_bytes},
       {"margin_bytes", limit.margin_bytes},
       {"margin_percent", limit.margin_percent},
       {"limit_bytes", limit.limit_bytes},
       {"memory", make_memory_json(*this)},
       {"peak", make_peak_json(detail.peak)},
       {"step_seconds", best_estimate.step_seconds},
       {"tokens_per_second", best_estimate.tokens_per_second},
       {"dry_run_step_cost", make_cost_json(costs.total)},
       {"predicted",
        "step_seconds and tokens_per_second are computed from counted operations and data sheets, not measured"},
       {"alternatives", alternatives_json},
       {"split", split ? split->to_json() : nullptr}});
  io::add_field_aliases(json, {{"gpu", "card"},
                               {"gpu_bytes", "card_bytes"},
                               {"other_processes_bytes", "others_bytes"},
                               {"dry_run_step_cost", "rehearsed_step_cost"},
                               {"split", "cut"}});
  if (average_step_estimate) json["average"] = make_average_step_json(*average_step_estimate, *this);
  json["communication"] = communication_estimate ? communication_estimate->to_json() : nullptr;
  json["ranks"] = make_rank_steps_json(rank_step_peaks);
  return json;
}

}  // namespace vlmtrain::planner
