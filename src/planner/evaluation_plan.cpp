#include "vlmtrain/planner/evaluation_plan.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <functional>
#include <span>

#include "planner/host_rehearsal.h"
#include "vlmtrain/planner/rehearsal_process.h"

namespace vlmtrain::planner {

namespace {

/// The peaks of each of some batches.
using Rehearse = std::function<std::vector<StepPeaks>(const std::vector<EvaluatedBatch>&)>;

/// One for each candidate.
std::vector<EvaluatedBatch> batches_of(const EvaluationRequest& request, const EvaluationPlan& tried) {
  std::vector<EvaluatedBatch> batches;
  for (const auto& candidate : request.candidates) {
    EvaluatedBatch& batch = batches.emplace_back();
    batch.layout = tried.layout;
    batch.max_new_tokens = request.max_new_tokens;
    const auto count = std::min(static_cast<size_t>(tried.batch_size), candidate.shapes.size());
    batch.samples = groups_of(std::span(candidate.shapes).first(count));
  }
  return batches;
}

/// In the order in which they are tried.
std::vector<EvaluationPlan> possible(const EvaluationRequest& request) {
  const int64_t samples = std::ssize(request.candidates.front().shapes);
  std::vector<EvaluationPlan> plans;
  if (request.batch_size) {
    plans.push_back({.batch_size = *request.batch_size});
  } else {
    const auto enough = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(samples)));
    for (int64_t size = std::min(request.largest_batch, enough); size >= 1; size /= 2) {
      plans.push_back({.batch_size = size});
    }
  }
  plans.push_back({.batch_size = plans.back().batch_size, .layout = engine::kLeastEvaluationLayout});
  return plans;
}

StepPeaks most_of(const std::vector<StepPeaks>& all) {
  StepPeaks most;
  for (const auto& peaks : all) {
    most.allocated_bytes = std::max(most.allocated_bytes, peaks.allocated_bytes);
    most.reserved_bytes = std::max(most.reserved_bytes, peaks.reserved_bytes);
  }
  return most;
}

using Clock = std::chrono::steady_clock;

EvaluationPlan search(const EvaluationRequest& request, Clock::time_point start, const Rehearse& rehearse) {
  std::optional<EvaluationPlan> chosen;
  for (EvaluationPlan plan : possible(request)) {
    plan.peaks = most_of(rehearse(batches_of(request, plan)));
    plan.fits = plan.peaks.reserved_bytes <= request.limit_bytes;
    const bool is_smallest = plan.batch_size == 1 || request.batch_size;
    const bool will_do = plan.peaks.reserved_bytes <= request.wanted_bytes || (is_smallest && plan.fits);
    // A layout that takes less only where it has to be.
    chosen = plan;
    if (will_do) break;
  }
  chosen->seconds = std::chrono::duration<double>(Clock::now() - start).count();
  return *chosen;
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

EvaluationPlan plan_evaluation(const EvaluationRequest& request, const VirtualCard& card) {
  const auto start = Clock::now();
  RehearsalProcess process(request.job, card);
  RehearsalRequest asked{
      .choices = request.training.value_or(Choices{}), .steps = {}, .trains = request.training.has_value()};
  if (request.training) asked.steps.assign(2, request.training_samples);
  // All at once: to build the model and to train takes longer than the evaluations.
  const auto plans = possible(request);
  std::vector<EvaluatedBatch> all;
  for (const auto& plan : plans) {
    auto batches = batches_of(request, plan);
    all.insert(all.end(), batches.begin(), batches.end());
  }
  asked.evaluations = all;
  const auto peaks = process.rehearse(asked).evaluations;
  size_t next = 0;
  return search(request, start, [&](const std::vector<EvaluatedBatch>& batches) {
    const auto first = peaks.begin() + static_cast<std::ptrdiff_t>(next);
    next += batches.size();
    return std::vector(first, first + std::ssize(batches));
  });
}

EvaluationPlan plan_evaluation_on_host(const EvaluationRequest& request) {
  const auto start = Clock::now();
  HostRehearsal rehearsal(request.job, HostRehearsal::Detail::kNone, request.training.has_value());
  if (request.training) rehearsal.step(*request.training, request.training_samples);
  return search(request, start, [&](const std::vector<EvaluatedBatch>& batches) {
    std::vector<StepPeaks> peaks;
    peaks.reserve(batches.size());
    for (const auto& batch : batches) peaks.push_back(rehearsal.evaluate(batch));
    return peaks;
  });
}

}  // namespace vlmtrain::planner
