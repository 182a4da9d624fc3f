#include "vlmtrain/planner/evaluation_plan.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <bit>
#include <chrono>
#include <memory>
#include <span>

#include "vlmtrain/planner/backend.h"

namespace vlmtrain::planner {

namespace {

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

StepPeaks compute_max_peaks(std::span<const StepPeaks> all_peaks) {
  StepPeaks max;
  for (const auto& peaks : all_peaks) {
    max.allocated_bytes = std::max(max.allocated_bytes, peaks.allocated_bytes);
    max.reserved_bytes = std::max(max.reserved_bytes, peaks.reserved_bytes);
  }
  return max;
}

/// Dry-runs the candidates of a request.
class CandidateDryRun {
 public:
  explicit CandidateDryRun(const EvaluationRequest& request)
      : request_(request), backend_(make_backend(request.job, request.target)) {}

  /// Sets the peaks of `candidates`, starting at `first`: of one with a cheap backend, otherwise of
  /// all in one dry run, since building the model and the training steps take longer than the
  /// evaluations.
  void measure(std::vector<EvaluationPlan>& candidates, size_t first) {
    if (first < num_measured_) return;
    const size_t end = backend_->traits().is_cheap ? first + 1 : candidates.size();
    DryRunRequest dry_run_request{.step_config = request_.training_step_config.value_or(StepConfig{}),
                                  .steps = {},
                                  .with_training = request_.training_step_config.has_value()};
    // Two steps, since the second one needs more memory than the first. A cheap backend keeps the
    // training state.
    if (request_.training_step_config && first == 0) dry_run_request.steps.assign(2, request_.training_samples);
    for (size_t i = first; i < end; ++i) {
      for (auto& batch : make_evaluation_batches(request_, candidates[i]))
        dry_run_request.evaluation_batches.push_back(std::move(batch));
    }
    const auto peaks = backend_->dry_run(dry_run_request).evaluation_peaks;
    const size_t num_batches = request_.worst_batches.size();
    for (size_t i = first; i < end; ++i)
      candidates[i].peaks = compute_max_peaks(std::span(peaks).subspan((i - first) * num_batches, num_batches));
    num_measured_ = end;
  }

 private:
  const EvaluationRequest& request_;
  std::unique_ptr<Backend> backend_;
  size_t num_measured_ = 0;
};

}  // namespace

nlohmann::ordered_json EvaluationPlan::to_json() const {
  return {{"batch_size", batch_size},
          {"vision_tiles_per_pass", layout.vision_tiles_per_pass},
          {"loss_chunk_rows", layout.loss_chunk_rows},
          {"allocated_peak_bytes", peaks.allocated_bytes},
          {"reserved_peak_bytes", peaks.reserved_bytes},
          {"fits", fits}};
}

EvaluationPlan plan_evaluation(const EvaluationRequest& request) {
  const auto start = std::chrono::steady_clock::now();
  std::vector<EvaluationPlan> candidates = list_candidate_plans(request);
  CandidateDryRun dry_run(request);
  EvaluationPlan plan;
  for (size_t i = 0; i < candidates.size(); ++i) {
    dry_run.measure(candidates, i);
    plan = candidates[i];
    plan.fits = plan.peaks.reserved_bytes <= request.limit_bytes;
    const bool is_smallest_batch_size = plan.batch_size == 1 || request.batch_size;
    if (plan.peaks.reserved_bytes <= request.target_reserved_bytes || (is_smallest_batch_size && plan.fits)) break;
  }
  plan.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return plan;
}

}  // namespace vlmtrain::planner
