#include "planner/search/plan_split.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "planner/dry_run/cpu_dry_run.h"
#include "planner/search/config_search.h"
#include "planner/search/split_plan_learner.h"
#include "vlmtrain/planner/job.h"

namespace vlmtrain::planner {

namespace {

/// Dry runs in the child process of a PlanEvaluator.
class GpuMicroBatchDryRun final : public MicroBatchDryRun {
 public:
  /// `evaluator` must outlive the object.
  GpuMicroBatchDryRun(PlanEvaluator& evaluator, const StepConfig& step_config)
      : evaluator_(evaluator), step_config_(step_config) {}

  std::vector<int64_t> measure_bytes(const std::vector<SampleShapeList>& micro_batches) override {
    DryRunRequest request{.step_config = step_config_, .steps = {}, .empty_cache_each_step = true};
    // The first step of a run allocates the optimizer state.
    request.steps.push_back(group_samples(micro_batches.front()));
    request.splits.push_back(engine::split_in_order({std::ssize(micro_batches.front())}));
    // Two equal micro-batches, as in PlanEvaluator::dry_run(): further ones repeat the second.
    for (const SampleShapeList& micro_batch : micro_batches) {
      SampleShapeList doubled = micro_batch;
      doubled.insert(doubled.end(), micro_batch.begin(), micro_batch.end());
      request.steps.push_back(group_samples(doubled));
      request.splits.push_back(engine::split_in_order({std::ssize(micro_batch), std::ssize(micro_batch)}));
    }
    const DryRunResult result = evaluator_.run_request(request);
    // Steps after one that ran out of memory have no result.
    std::vector<int64_t> bytes(micro_batches.size(), kUnlimitedBytes);
    for (size_t i = 0; i < micro_batches.size() && i + 1 < result.steps.size(); ++i) {
      bytes[i] = result.steps[i + 1].reserved_bytes;
    }
    return bytes;
  }

  StepResults run_steps(const std::vector<SampleShapeList>& steps,
                        const std::vector<engine::MicroBatchSplit>& splits) override {
    DryRunRequest request{
        .step_config = step_config_, .steps = {}, .splits = splits, .with_costs = true, .with_step_seconds = true};
    for (const SampleShapeList& step : steps) request.steps.push_back(group_samples(step));
    DryRunResult result = evaluator_.run_request(request);
    double num_micro_batches = 0, seconds = 0;
    for (size_t i = 0; i < result.step_seconds.size(); ++i) {
      num_micro_batches += static_cast<double>(splits[i].micro_batches());
      seconds += result.step_seconds[i];
    }
    const auto exposed_seconds = [&](int64_t micro_batches) {
      return num_micro_batches > 0
                 ? evaluator_.predict_communication(seconds / num_micro_batches, micro_batches).exposed_seconds
                 : 0;
    };
    for (size_t i = 0; i < result.step_seconds.size(); ++i) {
      result.step_seconds[i] += exposed_seconds(splits[i].micro_batches());
    }
    const double optimizer_seconds = result.costs ? result.costs->optimizer.seconds : 0;
    return {result.peaks(), std::move(result.step_seconds), optimizer_seconds + exposed_seconds(/*micro_batches=*/0)};
  }

 private:
  PlanEvaluator& evaluator_;
  StepConfig step_config_;
};

/// Returns false in the cases in which plan_split() does nothing.
bool should_plan_split(const Plan& plan) {
  if (plan.constraints.micro_batch_size || plan.workload.sampled_steps.empty() || plan.workload.samples_per_rank() == 1)
    return false;
  const StepConfig& best_config = plan.best_estimate.step_config;
  return plan.workload.packing || best_config.micro_batch_size < plan.workload.samples_per_rank() ||
         best_config.recompute != models::RecomputeBlocks{};
}

int64_t compute_midpoint(int64_t a, int64_t b) {
  return (a + b + 1) / 2;
}

/// Returns the recomputations to try (plan_split()), the fewest blocks first.
std::vector<models::RecomputeBlocks> list_recompute_blocks(const Plan& plan, PlanEvaluator& evaluator) {
  const StepConfig& best_config = plan.best_estimate.step_config;
  std::vector<models::RecomputeBlocks> blocks_to_try;
  if (!plan.constraints.recompute.is_auto()) return {best_config.recompute};
  const auto add = [&blocks_to_try](const models::RecomputeBlocks& blocks) {
    if (std::ranges::find(blocks_to_try, blocks) == blocks_to_try.end()) blocks_to_try.push_back(blocks);
  };
  StepConstraints single_sample_constraints = plan.constraints;
  single_sample_constraints.micro_batch_size = 1;
  const auto min_memory =
      ConfigSearch(evaluator, plan.workload, single_sample_constraints, plan.limit.limit_bytes).find();
  const models::RecomputeBlocks min_blocks = min_memory ? min_memory->step_config.recompute : best_config.recompute;
  const models::RecomputeBlocks all_blocks{.vision = plan.detail.vision_blocks,
                                           .language = plan.detail.language_blocks};
  add(min_blocks);
  add(best_config.recompute);
  add({.vision = compute_midpoint(min_blocks.vision, all_blocks.vision),
       .language = compute_midpoint(min_blocks.language, all_blocks.language)});
  add(all_blocks);
  std::ranges::stable_sort(blocks_to_try, {},
                           [](const models::RecomputeBlocks& blocks) { return blocks.vision + blocks.language; });
  return blocks_to_try;
}

/// Sets plan.best_estimate, and inserts it into the alternatives, which are sorted by micro-batch size, then
/// by recomputed blocks.
void set_best_estimate(Plan& plan, const StepEstimate& estimate) {
  plan.best_estimate = estimate;
  const auto is_same_config = [&](const StepEstimate& other) { return other.step_config == estimate.step_config; };
  if (std::ranges::any_of(plan.alternatives, is_same_config)) return;
  const auto position = std::ranges::find_if(plan.alternatives, [&](const StepEstimate& other) {
    const StepConfig& other_config = other.step_config;
    const StepConfig& new_config = estimate.step_config;
    return std::tuple(other_config.micro_batch_size, other_config.recompute.vision + other_config.recompute.language) >
           std::tuple(new_config.micro_batch_size, new_config.recompute.vision + new_config.recompute.language);
  });
  plan.alternatives.insert(position, estimate);
}

}  // namespace

void plan_split(Plan& plan, PlanEvaluator& evaluator, const CostModel& cost_model) {
  if (!should_plan_split(plan)) return;
  const SplitProblem problem{
      .sampled_steps = find_heaviest_rank_steps(plan.workload),
      .worst_steps = make_worst_steps(plan.workload),
      .initial_table = {.vision_tiles_per_pass = plan.best_estimate.step_config.vision_tiles_per_pass,
                        .loss_chunk_rows = plan.best_estimate.step_config.loss_chunk_rows,
                        .limit_bytes = plan.limit.limit_bytes}};
  const auto samples_per_step = static_cast<double>(plan.workload.samples_per_rank());
  models::RecomputeBlocks best_blocks = plan.best_estimate.step_config.recompute;
  for (const auto& blocks : list_recompute_blocks(plan, evaluator)) {
    const bool is_slower_in_one_micro_batch =
        plan.split &&
        cost_model.predict_step_seconds(1, samples_per_step, blocks) >=
            cost_model.predict_step_seconds(plan.split->micro_batches_per_step, samples_per_step, best_blocks);
    if (is_slower_in_one_micro_batch) continue;
    StepConfig step_config = plan.best_estimate.step_config;
    step_config.recompute = blocks;
    GpuMicroBatchDryRun dry_run(evaluator, step_config);
    const SplitPlan split = learn_split_plan(dry_run, problem);
    if (plan.split && split.samples_per_second <= plan.split->samples_per_second) continue;
    plan.split = split;
    best_blocks = blocks;
    if (plan.split->max_micro_batches == 1) break;  // more recomputation cannot lower the number of micro-batches
  }
  if (best_blocks != plan.best_estimate.step_config.recompute) {
    StepConstraints constraints = plan.constraints;
    constraints.recompute = RecomputeOption::from_blocks(best_blocks);
    ConfigSearch search(evaluator, plan.workload, constraints, plan.limit.limit_bytes);
    if (const auto estimate = search.find()) {
      set_best_estimate(plan, *estimate);
    } else {
      plan.split.reset();
    }
  }
}

namespace {

/// Dry runs on the meta device.
class CpuMicroBatchDryRun final : public MicroBatchDryRun {
 public:
  /// Adds the number and duration of dry runs to `planning_stats`, which must outlive the object.
  CpuMicroBatchDryRun(const Job& job, StepConfig step_config, PlanningStats& planning_stats)
      : dry_run_(job), step_config_(std::move(step_config)), planning_stats_(planning_stats) {}

  std::vector<int64_t> measure_bytes(const std::vector<SampleShapeList>& micro_batches) override {
    std::vector<int64_t> bytes;
    bytes.reserve(micro_batches.size());
    // The first step of a run allocates the optimizer state.
    if (!std::exchange(has_optimizer_state_, true))
      step(micro_batches.front(), engine::split_in_order({std::ssize(micro_batches.front())}));
    for (const SampleShapeList& micro_batch : micro_batches)
      bytes.push_back(step(micro_batch, engine::split_in_order({std::ssize(micro_batch)})).reserved_bytes);
    return bytes;
  }

  StepResults run_steps(const std::vector<SampleShapeList>& steps,
                        const std::vector<engine::MicroBatchSplit>& splits) override {
    StepResults results;
    for (size_t i = 0; i < steps.size(); ++i) {
      const StepPeaks peaks = step(steps[i], splits[i]);
      if (peaks.reserved_bytes > results.peaks.reserved_bytes) results.peaks = peaks;
    }
    return results;
  }

 private:
  StepPeaks step(const SampleShapeList& samples, engine::MicroBatchSplit split) {
    engine::StepLayout layout = make_step_layout(step_config_, samples);
    layout.split = std::move(split);
    const DryRunResult result = dry_run_.step(layout, group_samples(samples));
    ++planning_stats_.num_dry_runs;
    planning_stats_.dry_run_seconds += result.seconds;
    return result.peaks();
  }

  CpuDryRun dry_run_;
  StepConfig step_config_;
  PlanningStats& planning_stats_;
  bool has_optimizer_state_ = false;
};

}  // namespace

void plan_cpu_split(const CpuPlanRequest& request, CpuPlan& plan) {
  const Workload& workload = request.workload;
  if (request.constraints.micro_batch_size || workload.sampled_steps.empty()) return;
  const int64_t max_micro_batch_size = std::min(request.max_micro_batch_size, workload.samples_per_rank());
  if (plan.step_config.micro_batch_size >= max_micro_batch_size && !workload.packing) return;
  const SplitProblem problem{.sampled_steps = find_heaviest_rank_steps(workload),
                             .worst_steps = make_worst_steps(workload),
                             .initial_table = {.vision_tiles_per_pass = plan.step_config.vision_tiles_per_pass,
                                               .loss_chunk_rows = plan.step_config.loss_chunk_rows,
                                               .limit_bytes = plan.limit.tensor_bytes,
                                               .max_samples = request.max_micro_batch_size}};
  CpuMicroBatchDryRun dry_run(request.job, plan.step_config, plan.planning_stats);
  plan.split = learn_split_plan(dry_run, problem);
  if (plan.split->peaks.reserved_bytes <= plan.needed_bytes()) return;
  plan.peak_bytes = plan.split->peaks.allocated_bytes;
  plan.malloc_cached_bytes = plan.split->peaks.reserved_bytes - plan.split->peaks.allocated_bytes;
}

}  // namespace vlmtrain::planner
