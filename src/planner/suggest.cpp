#include <fmt/format.h>

#include <algorithm>

#include "planner/card_remedy_rehearsal.h"
#include "planner/suggestions/gpu_suggestions.h"
#include "planner/suggestions/suggestions.h"
#include "vlmtrain/base/bytes.h"

namespace vlmtrain::planner {

namespace {

std::string format_size(int64_t bytes) {
  return fmt::format("{:.1f} GB", to_gigabytes(bytes));
}

}  // namespace

std::vector<Suggestion> suggest_faster(const Plan& plan, const CostModel& cost_model) {
  std::vector<Suggestion> suggestions;
  const auto add = [&](std::string note) {
    suggestions.push_back({.arguments = {}, .note = std::move(note), .makes_it_fit = true});
  };
  const StepConfig& step_config = plan.best.step_config;
  if (step_config.recompute.vision + step_config.recompute.language > 0) {
    const auto missing_bytes = cost_model.reserved_bytes(step_config.micro_batch_size, {}) - plan.limit.limit_bytes;
    const double seconds_without = cost_model.micro_batch_seconds(step_config.micro_batch_size, {});
    const double seconds_with = cost_model.micro_batch_seconds(step_config.micro_batch_size, step_config.recompute);
    add(fmt::format("with {} more nothing would be recomputed: steps about {:.0f} % shorter",
                    format_size(std::max<int64_t>(missing_bytes, 0)), 100 * (1 - seconds_without / seconds_with)));
  }
  const int64_t unused_bytes = plan.limit.limit_bytes - plan.best.peaks.reserved_bytes;
  if (step_config.micro_batch_size == plan.workload.samples_per_rank()) {
    add(fmt::format("the whole share of the global batch is one micro-batch; {} stay free beside the margin",
                    format_size(unused_bytes)));
  }
  return suggestions;
}

std::vector<Suggestion> suggest_changes_that_fit(const PlanRequest& request, const Plan& plan,
                                                 PlanEvaluator& evaluator) {
  GpuChangeEvaluator change_evaluator(request, plan, evaluator);
  auto suggestions = make_suggestions(change_evaluator, plan.best.peaks.reserved_bytes, plan.detail);
  if (auto suggestion = change_evaluator.suggest_larger_gpu()) suggestions.push_back(std::move(*suggestion));
  append_required_bytes(suggestions);
  if (suggestions.empty()) {
    suggestions.push_back(
        {.arguments = {},
         .note =
             "neither smaller samples nor LoRA on weights of 4 bits nor a larger card would do; take a smaller model",
         .makes_it_fit = false});
  }
  return suggestions;
}

}  // namespace vlmtrain::planner
