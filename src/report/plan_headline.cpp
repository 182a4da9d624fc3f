#include <fmt/ranges.h>

#include <algorithm>

#include "report/plan_memory.h"
#include "report/plan_words.h"
#include "vlmtrain/base/bytes.h"
#include "vlmtrain/report/plan_text.h"

namespace vlmtrain::report {

namespace {

/// "recomputing all blocks", "recomputing 9 of 27 vision and 12 of 24 language blocks"; empty for none.
std::string recomputing(const planner::Plan& plan) {
  const auto& blocks = plan.chosen.choices.recompute;
  const auto& detail = plan.detail;
  if (blocks == models::RecomputeBlocks{}) return {};
  if (blocks == models::RecomputeBlocks{detail.vision_blocks, detail.language_blocks}) return "recomputing all blocks";
  std::vector<std::string> towers;
  const auto add = [&](const char* tower, int64_t recomputed, int64_t all) {
    if (recomputed == 0) return;
    towers.push_back(recomputed == all ? fmt::format("all {}", tower)
                                       : fmt::format("{} of {} {}", recomputed, all, tower));
  };
  add("vision", blocks.vision, detail.vision_blocks);
  add("language", blocks.language, detail.language_blocks);
  return fmt::format("recomputing {} blocks", fmt::join(towers, " and "));
}

std::string refusal_headline(const planner::Plan& plan) {
  std::string least = fmt::format("micro-batch {}", plan.chosen.choices.micro_batch_size);
  if (const std::string blocks = recomputing(plan); !blocks.empty()) least += ", " + blocks;
  const int64_t usable = plan.limit.card_bytes - plan.limit.margin_bytes;
  return fmt::format("does not fit: {} needs at least {} ({}), the card has {} beside its margin; {} are missing",
                     printable(plan.model), gigabytes(plan.total_bytes()), least, gigabytes(usable),
                     gigabytes(missing_bytes(plan)));
}

}  // namespace

std::string plan_headline(const planner::Plan& plan) {
  if (!plan.fits) return refusal_headline(plan);
  std::string ranks;
  if (plan.workload.world_size > 1) ranks = fmt::format(" x {} ranks", plan.workload.world_size);
  std::string text = fmt::format("fits: {:.1f} of {:.1f} GB, micro-batch {} x accumulation {}{} = global batch {}",
                                 in_gigabytes(plan.total_bytes()), in_gigabytes(plan.limit.card_bytes),
                                 plan.chosen.choices.micro_batch_size, plan.accumulation_steps(), ranks,
                                 plan.workload.global_batch_size);
  if (const std::string blocks = recomputing(plan); !blocks.empty()) text += ", " + blocks;
  return text;
}

std::string plan_refusal(const planner::Plan& plan) {
  auto suggestions = plan.suggestions;
  std::stable_partition(suggestions.begin(), suggestions.end(),
                        [](const planner::Suggestion& suggestion) { return suggestion.makes_it_fit; });
  std::string text = plan_headline(plan);
  for (const auto& suggestion : suggestions) text += "\n  " + printable(suggestion.text);
  return text;
}

}  // namespace vlmtrain::report
