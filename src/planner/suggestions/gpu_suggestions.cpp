#include <fmt/format.h>

#include <algorithm>

#include "planner/card_remedy_rehearsal.h"
#include "planner/frugal.h"
#include "planner/larger_card.h"
#include "planner/least_limit.h"
#include "planner/search/config_search.h"
#include "vlmtrain/base/bytes.h"

namespace vlmtrain::planner {

namespace {

/// Of what the plan's passes of the tower save, what they may save of another job.
constexpr double kPassSavingsMargin = 1.2;

}  // namespace

GpuChangeEvaluator::GpuChangeEvaluator(const PlanRequest& request, const Plan& plan, PlanEvaluator& evaluator)
    : ChangeEvaluator({.job = request.job,
                       .workload = request.workload,
                       .constraints = request.constraints,
                       .sample_limits = request.sample_limits,
                       .flags = request.flags,
                       .has_bf16 = supports_precision(*request.target.gpu, engine::Precision::kBf16)}),
      request_(request),
      plan_(plan),
      evaluator_(evaluator) {}

double GpuChangeEvaluator::compute_give_up_ratio() const {
  double max_ratio = 1;
  for (const auto& estimate : evaluator_.all_estimates()) {
    if (estimate->step_config.micro_batch_size != plan_.best.step_config.micro_batch_size ||
        estimate->step_config.recompute != plan_.best.step_config.recompute) {
      continue;
    }
    max_ratio =
        std::max(max_ratio, static_cast<double>(estimate->peaks.reserved_bytes) / static_cast<double>(needed_bytes()));
  }
  return kPassSavingsMargin * max_ratio;
}

std::optional<int64_t> GpuChangeEvaluator::estimate_min_bytes(const Job& job, const Workload& workload,
                                                              const StepConstraints& constraints) {
  const models::RecomputeBlocks blocks{.vision = plan_.detail.vision_blocks, .language = plan_.detail.language_blocks};
  return find_min_reserved_bytes(evaluator_, job, workload, make_min_memory_configs(constraints, workload, blocks),
                                 limit_bytes(), compute_give_up_ratio() * static_cast<double>(limit_bytes()));
}

std::optional<ChangeEvaluator::RelaxedPlan> GpuChangeEvaluator::replan(const StepConstraints& constraints) {
  const auto estimate = ConfigSearch(evaluator_, request_.workload, constraints, limit_bytes()).find();
  if (!estimate) return std::nullopt;
  return RelaxedPlan{estimate->step_config.micro_batch_size, plan_.total_bytes(*estimate)};
}

MemoryLimit GpuChangeEvaluator::compute_limit(MemoryMode mode, std::optional<double> gigabytes) const {
  return compute_memory_limit(request_.target, mode, gigabytes, request_.workload.world_size);
}

std::vector<Suggestion> GpuChangeEvaluator::suggest_more_memory() const {
  std::vector<Suggestion> list;
  const auto add = [&](std::string argument, std::string note) {
    list.push_back({.arguments = {std::move(argument)},
                    .note = std::move(note),
                    .makes_it_fit = true,
                    .total_bytes = total_bytes(needed_bytes())});
  };
  const auto aggressive_limit = compute_limit(MemoryMode::kAggressive, request_.limit_gigabytes);
  if (needed_bytes() <= aggressive_limit.limit_bytes) {
    add("memory.mode=aggressive", fmt::format("keeps {:g} % of the card free instead of {:g} %",
                                              aggressive_limit.margin_percent, plan_.limit.margin_percent));
  }
  if (!request_.limit_gigabytes) return list;
  const double max_gigabytes = to_gigabytes(request_.target.memory_bytes);
  const auto gigabytes = find_min_limit(*request_.limit_gigabytes, max_gigabytes, [&](double candidate_gigabytes) {
    return needed_bytes() <= compute_limit(request_.mode, candidate_gigabytes).limit_bytes;
  });
  if (gigabytes) {
    add(fmt::format("memory.limit_gb={:g}", *gigabytes), "lets the run take more of the card");
  } else if (needed_bytes() <= compute_limit(request_.mode, std::nullopt).limit_bytes) {
    add("memory.limit_gb=auto", "lets the run take all of the card");
  }
  return list;
}

std::optional<Suggestion> GpuChangeEvaluator::suggest_larger_gpu() const {
  const bool fits_without_limit = needed_bytes() <= compute_limit(request_.mode, std::nullopt).limit_bytes;
  if (request_.limit_gigabytes && fits_without_limit) return std::nullopt;
  return planner::suggest_larger_gpu(request_, plan_);
}

}  // namespace vlmtrain::planner
