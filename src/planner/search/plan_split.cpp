#include "planner/search/plan_split.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>
#include <utility>
#include <variant>

#include "planner/search/config_search.h"
#include "planner/search/split_plan_learner.h"
#include "vlmtrain/planner/job.h"

namespace vlmtrain::planner {

namespace {

/// Dry runs in the backend of a PlanEvaluator.
class EvaluatorMicroBatchDryRun final : public MicroBatchDryRun {
 public:
  /// `evaluator` must outlive the object.
  EvaluatorMicroBatchDryRun(PlanEvaluator& evaluator, const StepConfig& step_config)
      : evaluator_(evaluator), step_config_(step_config) {}

  std::vector<int64_t> measure_reserved_peak_bytes(const std::vector<SampleShapeList>& micro_batches) override {
    DryRunRequest request{.step_config = step_config_, .steps = {}, .empty_cache_each_step = true};
    // The first step of a run allocates the optimizer state.
    request.steps.push_back(group_samples(micro_batches.front()));
    request.micro_batch_splits.push_back(engine::split_in_order({std::ssize(micro_batches.front())}));
    // Equal micro-batches, as in PlanEvaluator::dry_run().
    const auto copies = static_cast<size_t>(evaluator_.traits().num_distinct_micro_batches);
    for (const SampleShapeList& micro_batch : micro_batches) {
      SampleShapeList step;
      for (size_t i = 0; i < copies; ++i) step.insert(step.end(), micro_batch.begin(), micro_batch.end());
      request.steps.push_back(group_samples(step));
      request.micro_batch_splits.push_back(engine::split_in_order(std::vector(copies, std::ssize(micro_batch))));
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
    DryRunRequest request{.step_config = step_config_,
                          .steps = {},
                          .micro_batch_splits = splits,
                          .with_costs = evaluator_.traits().predicts_time,
                          .with_step_seconds = evaluator_.traits().predicts_time};
    for (const SampleShapeList& step : steps) request.steps.push_back(group_samples(step));
    DryRunResult result = evaluator_.run_request(request);
    double num_micro_batches = 0, seconds = 0;
    for (size_t i = 0; i < result.step_seconds.size(); ++i) {
      num_micro_batches += static_cast<double>(splits[i].num_micro_batches());
      seconds += result.step_seconds[i];
    }
    const auto exposed_seconds = [&](int64_t num_step_micro_batches) {
      return num_micro_batches > 0
                 ? evaluator_.predict_communication(seconds / num_micro_batches, num_step_micro_batches).exposed_seconds
                 : 0;
    };
    for (size_t i = 0; i < result.step_seconds.size(); ++i) {
      result.step_seconds[i] += exposed_seconds(splits[i].num_micro_batches());
    }
    const double optimizer_seconds = result.costs ? result.costs->optimizer.seconds : 0;
    return {result.compute_max_peaks(), std::move(result.step_seconds),
            optimizer_seconds + exposed_seconds(/*num_step_micro_batches=*/0)};
  }

 private:
  PlanEvaluator& evaluator_;
  StepConfig step_config_;
};

/// Returns false in the cases in which plan_split() does nothing.
bool should_plan_split(const Plan& plan, const PlanEvaluator& evaluator) {
  if (plan.constraints.micro_batch_size || plan.workload.sampled_steps.empty() || plan.workload.samples_per_rank() == 1)
    return false;
  const StepConfig& best_config = plan.best_estimate.step_config;
  const int64_t max_micro_batch_size = std::min(evaluator.max_micro_batch_size(), plan.workload.samples_per_rank());
  return plan.workload.packing || best_config.micro_batch_size < max_micro_batch_size ||
         (evaluator.traits().predicts_time && best_config.recompute != models::RecomputeBlockCounts{});
}

/// Returns the maximum number of samples in a micro-batch of a split; 0: no limit.
int64_t get_max_split_samples(const Plan& plan) {
  const auto* const host = std::get_if<TargetHost>(&plan.target);
  return host == nullptr ? 0 : host->max_micro_batch_size;
}

int64_t compute_midpoint(int64_t a, int64_t b) {
  return (a + b + 1) / 2;
}

/// Returns the recomputations to try (plan_split()), the fewest blocks first.
std::vector<models::RecomputeBlockCounts> list_candidate_recompute_counts(const Plan& plan, PlanEvaluator& evaluator) {
  const StepConfig& best_config = plan.best_estimate.step_config;
  std::vector<models::RecomputeBlockCounts> candidate_recompute_counts;
  if (!plan.constraints.recompute.is_auto() || !evaluator.traits().predicts_time) return {best_config.recompute};
  const auto add = [&candidate_recompute_counts](const models::RecomputeBlockCounts& blocks) {
    if (std::ranges::find(candidate_recompute_counts, blocks) == candidate_recompute_counts.end())
      candidate_recompute_counts.push_back(blocks);
  };
  StepConstraints single_sample_constraints = plan.constraints;
  single_sample_constraints.micro_batch_size = 1;
  const StepConfigSearchResult single_sample =
      search_step_config(evaluator, plan.workload, single_sample_constraints, plan.limit.limit_bytes);
  const models::RecomputeBlockCounts min_memory_recompute_counts =
      single_sample.fits ? single_sample.estimate.step_config.recompute : best_config.recompute;
  const models::RecomputeBlockCounts total_block_counts{.vision = plan.detail.num_vision_blocks,
                                                        .language = plan.detail.num_language_blocks};
  add(min_memory_recompute_counts);
  add(best_config.recompute);
  add({.vision = compute_midpoint(min_memory_recompute_counts.vision, total_block_counts.vision),
       .language = compute_midpoint(min_memory_recompute_counts.language, total_block_counts.language)});
  add(total_block_counts);
  std::ranges::stable_sort(candidate_recompute_counts, {},
                           [](const models::RecomputeBlockCounts& blocks) { return blocks.vision + blocks.language; });
  return candidate_recompute_counts;
}

/// Sets plan.best_estimate, and inserts it into the alternatives, which are sorted by micro-batch
/// size, then by recomputed blocks.
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

void plan_split(Plan& plan, PlanEvaluator& evaluator, const std::optional<CostModel>& cost_model) {
  if (!should_plan_split(plan, evaluator)) return;
  const SplitPlanRequest split_request{
      .sampled_steps = find_heaviest_rank_steps(plan.workload),
      .worst_steps = make_worst_steps(plan.workload),
      .initial_table = {.vision_tiles_per_pass = plan.best_estimate.step_config.vision_tiles_per_pass,
                        .loss_chunk_rows = plan.best_estimate.step_config.loss_chunk_rows,
                        .limit_bytes = plan.limit.limit_bytes,
                        .max_samples = get_max_split_samples(plan)}};
  const auto samples_per_step = static_cast<double>(plan.workload.samples_per_rank());
  models::RecomputeBlockCounts best_recompute_counts = plan.best_estimate.step_config.recompute;
  for (const auto& blocks : list_candidate_recompute_counts(plan, evaluator)) {
    const bool is_slower_in_one_micro_batch =
        plan.split && cost_model->predict_step_seconds(1, samples_per_step, blocks) >=
                          cost_model->predict_step_seconds(plan.split->mean_micro_batches_per_step, samples_per_step,
                                                           best_recompute_counts);
    if (is_slower_in_one_micro_batch) continue;
    StepConfig step_config = plan.best_estimate.step_config;
    step_config.recompute = blocks;
    EvaluatorMicroBatchDryRun dry_run(evaluator, step_config);
    const SplitPlan split = learn_split_plan(dry_run, split_request);
    if (plan.split && split.samples_per_second <= plan.split->samples_per_second) continue;
    plan.split = split;
    best_recompute_counts = blocks;
    if (plan.split->max_micro_batches_per_step == 1)
      break;  // more recomputation cannot lower the number of micro-batches
  }
  if (best_recompute_counts != plan.best_estimate.step_config.recompute) {
    StepConstraints constraints = plan.constraints;
    constraints.recompute = RecomputeOption::from_block_counts(best_recompute_counts);
    const StepConfigSearchResult search =
        search_step_config(evaluator, plan.workload, constraints, plan.limit.limit_bytes);
    if (search.fits) {
      set_best_estimate(plan, search.estimate);
    } else {
      plan.split.reset();
    }
  }
}

}  // namespace vlmtrain::planner
