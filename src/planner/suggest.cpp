#include "planner/suggest.h"

#include <fmt/format.h>

#include <algorithm>

#include "planner/card_remedy_rehearsal.h"
#include "planner/remedies.h"
#include "vlmtrain/base/bytes.h"

namespace vlmtrain::planner {

namespace {

std::string size_words(int64_t bytes) {
  return fmt::format("{:.1f} GB", in_gigabytes(bytes));
}

}  // namespace

std::vector<Suggestion> suggest_faster(const Plan& plan, const Estimate& estimate) {
  std::vector<Suggestion> suggestions;
  const auto add = [&](std::string note) {
    suggestions.push_back({.arguments = {}, .note = std::move(note), .makes_it_fit = true});
  };
  const Choices& chosen = plan.chosen.choices;
  if (chosen.recompute.vision + chosen.recompute.language > 0) {
    const auto missing = estimate.reserved_bytes(chosen.micro_batch_size, {}) - plan.limit.limit_bytes;
    const double without = estimate.micro_batch_seconds(chosen.micro_batch_size, {});
    const double with = estimate.micro_batch_seconds(chosen.micro_batch_size, chosen.recompute);
    add(fmt::format("with {} more nothing would be recomputed: steps about {:.0f} % shorter",
                    size_words(std::max<int64_t>(missing, 0)), 100 * (1 - without / with)));
  }
  const int64_t spare = plan.limit.limit_bytes - plan.chosen.peaks.reserved_bytes;
  if (chosen.micro_batch_size == plan.workload.samples_per_rank()) {
    add(fmt::format("the whole share of the global batch is one micro-batch; {} stay free beside the margin",
                    size_words(spare)));
  }
  return suggestions;
}

std::vector<Suggestion> suggest_fitting(const PlanRequest& request, const Plan& plan, RehearsedOptions& rehearsed) {
  CardRemedyRehearsal rehearsal(request, plan, rehearsed);
  auto suggestions = remedies_of(rehearsal, plan.chosen.peaks.reserved_bytes, plan.detail);
  if (auto card = rehearsal.larger_card()) suggestions.push_back(std::move(*card));
  say_what_is_enough(suggestions);
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
