#include "vlmtrain/planner/evaluation_plan.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <functional>
#include <span>

#include "planner/dry_run/cpu_dry_run.h"
#include "vlmtrain/planner/dry_run_process.h"

namespace vlmtrain::planner {

namespace {

/// A function that dry-runs batches and returns the peaks of each.
using DryRunBatchesFunction = std::function<std::vector<StepPeaks>(const std::vector<EvaluationBatch>&)>;

/// Returns the first samples of each of request.worst_batches, as many as the plan's batch size.
std::vector<EvaluationBatch> make_evaluation_batches(const EvaluationRequest& request, const EvaluationPlan& plan) {
  std::vector<EvaluationBatch> batches;
  for (const auto& candidate : request.worst_batches) {
    EvaluationBatch& batch = batches.emplace_back();
    batch.layout = plan.layout;
    batch.max_new_tokens = request.max_new_tokens;
    const auto count = std::min(static_cast<size_t>(plan.batch_size), candidate.shapes.size());
    batch.samples = group_samples(std::span(candidate.shapes).first(count));
  }
  return batches;
}

/// Returns plans without peaks, in the order in which they are tried.
std::vector<EvaluationPlan> list_candidate_plans(const EvaluationRequest& request) {
  const int64_t samples = std::ssize(request.worst_batches.front().shapes);
  std::vector<EvaluationPlan> candidate_plans;
  if (request.batch_size) {
    candidate_plans.push_back({.batch_size = *request.batch_size});
  } else {
    // Larger batches would have the same samples.
    const auto max_useful_batch_size = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(samples)));
    for (int64_t size = std::min(request.max_batch_size, max_useful_batch_size); size >= 1; size /= 2) {
      candidate_plans.push_back({.batch_size = size});
    }
  }
  // A layout with less memory is slower, so that it is the last resort.
  candidate_plans.push_back(
      {.batch_size = candidate_plans.back().batch_size, .layout = engine::kMinMemoryEvaluationLayout});
  return candidate_plans;
}

StepPeaks compute_max_peaks(const std::vector<StepPeaks>& all_peaks) {
  StepPeaks max;
  for (const auto& peaks : all_peaks) {
    max.allocated_bytes = std::max(max.allocated_bytes, peaks.allocated_bytes);
    max.reserved_bytes = std::max(max.reserved_bytes, peaks.reserved_bytes);
  }
  return max;
}

using Clock = std::chrono::steady_clock;

/// Returns the first plan that is accepted, or the last one. Dry-runs the plans one by one.
EvaluationPlan find_evaluation_plan(const EvaluationRequest& request, Clock::time_point start,
                                    const DryRunBatchesFunction& dry_run) {
  std::optional<EvaluationPlan> best_plan;
  for (EvaluationPlan plan : list_candidate_plans(request)) {
    plan.peaks = compute_max_peaks(dry_run(make_evaluation_batches(request, plan)));
    plan.fits = plan.peaks.reserved_bytes <= request.limit_bytes;
    const bool is_smallest_batch_size = plan.batch_size == 1 || request.batch_size;
    const bool is_accepted =
        plan.peaks.reserved_bytes <= request.target_reserved_bytes || (is_smallest_batch_size && plan.fits);
    best_plan = plan;
    if (is_accepted) break;
  }
  best_plan->seconds = std::chrono::duration<double>(Clock::now() - start).count();
  return *best_plan;
}

}  // namespace

nlohmann::ordered_json EvaluationPlan::to_json() const {
  return {{"batch_size", batch_size},
          {"vision_tiles_per_pass", layout.vision_tiles_per_pass},
          {"loss_chunk_rows", layout.loss_chunk_rows},
          {"allocated_peak_bytes", peaks.allocated_bytes},
          {"reserved_peak_bytes", peaks.reserved_bytes},
          {"fits", fits}};
}

EvaluationPlan plan_evaluation(const EvaluationRequest& request, const VirtualGpu& gpu) {
  const auto start = Clock::now();
  DryRunProcess process(request.job, gpu);
  DryRunRequest dry_run_request{.step_config = request.training_step_config.value_or(StepConfig{}),
                                .steps = {},
                                .with_training = request.training_step_config.has_value()};
  // Two steps, since the second one needs more memory than the first.
  if (request.training_step_config) dry_run_request.steps.assign(2, request.training_samples);
  // All plans are in one request, since building the model and the training steps take longer than
  // the evaluations. `find_evaluation_plan` then reads the peaks in the same order.
  const auto candidate_plans = list_candidate_plans(request);
  std::vector<EvaluationBatch> candidate_batches;
  for (const auto& plan : candidate_plans) {
    auto batches = make_evaluation_batches(request, plan);
    candidate_batches.insert(candidate_batches.end(), batches.begin(), batches.end());
  }
  dry_run_request.evaluation_batches = candidate_batches;
  const auto peaks = process.dry_run(dry_run_request).evaluation_peaks;
  size_t next = 0;
  return find_evaluation_plan(request, start, [&](const std::vector<EvaluationBatch>& batches) {
    const auto first = peaks.begin() + static_cast<std::ptrdiff_t>(next);
    next += batches.size();
    return std::vector(first, first + std::ssize(batches));
  });
}

EvaluationPlan plan_cpu_evaluation(const EvaluationRequest& request) {
  const auto start = Clock::now();
  CpuDryRun dry_run(request.job, CpuDryRun::Detail::kNone, request.training_step_config.has_value());
  if (request.training_step_config) dry_run.step(*request.training_step_config, request.training_samples);
  return find_evaluation_plan(request, start, [&](const std::vector<EvaluationBatch>& batches) {
    std::vector<StepPeaks> peaks;
    peaks.reserve(batches.size());
    for (const auto& batch : batches) peaks.push_back(dry_run.evaluate(batch));
    return peaks;
  });
}

}  // namespace vlmtrain::planner
