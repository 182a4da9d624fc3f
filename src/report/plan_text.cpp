#include "vlmtrain/report/plan_text.h"

#include <fmt/format.h>

namespace vlmtrain::report {

std::string plan_headline(const planner::Plan& plan) {
  const auto& choices = plan.chosen.choices;
  const double total = static_cast<double>(plan.total_bytes()) / 1e9;
  const double card = static_cast<double>(plan.limit.card_bytes) / 1e9;
  if (!plan.fits) {
    return fmt::format("does not fit: {} needs at least {:.1f} GB beside the margin on {}", plan.model, total,
                       plan.card.description);
  }
  return fmt::format("fits: micro-batch {} x {} accumulation steps x {} = {} samples, {:.1f} of {:.1f} GB on {}",
                     choices.micro_batch_size, plan.accumulation_steps(), plan.workload.world_size,
                     plan.workload.global_batch_size, total, card, plan.card.description);
}

std::string plan_refusal(const planner::Plan& plan) {
  std::string text = plan_headline(plan);
  for (const auto& suggestion : plan.suggestions) text += "\n  " + suggestion.text;
  return text;
}

std::string plan_text(const planner::Plan& plan, const TextStyle& /*style*/) {
  return plan_headline(plan) + "\n";
}

}  // namespace vlmtrain::report
