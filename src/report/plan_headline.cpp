#include <fmt/ranges.h>

#include <algorithm>

#include "report/plan_memory.h"
#include "report/plan_words.h"
#include "vlmtrain/base/bytes.h"
#include "vlmtrain/base/number_words.h"
#include "vlmtrain/base/printable.h"
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
  std::string text = fmt::format("recomputing {} blocks", fmt::join(towers, " and "));
  if (blocks.language_attention_kept == blocks.language && blocks.language > 0) return text + " but for attention";
  if (blocks.language_attention_kept > 0) {
    text += fmt::format(" (attention kept in {})", blocks.language_attention_kept);
  }
  return text;
}

/// " with training.micro_batch_size=16", of what a person fixed; empty for nothing.
std::string with_fixed(const planner::FixedChoices& fixed) {
  std::vector<std::string> keys;
  const auto add = [&](const char* key, const auto& value) { keys.push_back(fmt::format("{}={}", key, value)); };
  if (fixed.micro_batch_size) add("training.micro_batch_size", *fixed.micro_batch_size);
  if (!fixed.recompute.is_auto()) add("memory.recompute", fixed.recompute.text);
  if (fixed.vision_tiles_per_pass) add("memory.vision_tiles_per_pass", *fixed.vision_tiles_per_pass);
  if (fixed.loss_chunk_rows) add("memory.loss_chunk_rows", *fixed.loss_chunk_rows);
  return keys.empty() ? "" : fmt::format(" with {}", fmt::join(keys, " and "));
}

/// The choices that take so little.
std::string least_words(const planner::Plan& plan) {
  const planner::Choices& choices = plan.chosen.choices;
  std::string least = fmt::format("micro-batch {}", choices.micro_batch_size);
  if (const std::string blocks = recomputing(plan); !blocks.empty()) least += ", " + blocks;
  if (choices.vision_tiles_per_pass > 0) least += ", " + vision_pass_words(plan);
  if (choices.loss_chunk_rows != planner::Choices{}.loss_chunk_rows) {
    least += ", loss in chunks of " + counted(choices.loss_chunk_rows, "row");
  }
  return least;
}

std::string refusal_headline(const planner::Plan& plan) {
  const int64_t usable = plan.limit.card_bytes - plan.limit.margin_bytes;
  const std::string others = plan.card.others_bytes > 0
                                 ? fmt::format(" (other processes hold {} of it)", gigabytes(plan.card.others_bytes))
                                 : "";
  return fmt::format(
      "does not fit: {} of {} needs at least {}{} ({}), the card has {} beside its margin{}; {} are missing",
      training_words(plan), printable(plan.model), gigabytes(plan.total_bytes()), with_fixed(plan.fixed),
      least_words(plan), gigabytes(usable), others, gigabytes(missing_bytes(plan)));
}

const char* sharing_words(engine::Sharding sharding) {
  switch (sharding) {
    case engine::Sharding::kNone:
      return "";
    case engine::Sharding::kOptimizer:
      return " that share the optimizer's state";
    case engine::Sharding::kFull:
      return " that share weights, gradients and the optimizer's state";
    case engine::Sharding::kHybrid:
      return " that share weights, gradients and the optimizer's state within a machine";
  }
  return "";
}

}  // namespace

std::string plan_headline(const planner::Plan& plan) {
  if (!plan.fits) return refusal_headline(plan);
  std::string ranks;
  if (plan.workload.world_size > 1) {
    ranks = fmt::format(" x {} ranks{}", plan.workload.world_size, sharing_words(plan.job.sharding));
  }
  const planner::Workload& workload = plan.workload;
  const std::string batch =
      workload.packed ? fmt::format("{} of {}", counted(workload.samples_per_rank() * workload.world_size, "sample"),
                                    counted(workload.global_batch_size, "pack"))
                      : fmt::format("global batch {}", workload.global_batch_size);
  std::string text = fmt::format("fits: {:.1f} of {:.1f} GB, micro-batch {} x accumulation {}{} = {}",
                                 in_gigabytes(plan.total_bytes()), in_gigabytes(plan.limit.card_bytes),
                                 plan.chosen.choices.micro_batch_size, plan.accumulation_steps(), ranks, batch);
  if (plan.cut)
    text += fmt::format(" for the largest, {:.1f} micro-batches a step on average", plan.cut->passes_per_step);
  if (const std::string blocks = recomputing(plan); !blocks.empty()) text += ", " + blocks;
  return text + ", " + training_words(plan);
}

std::string plan_refusal(const planner::Plan& plan) {
  auto suggestions = plan.suggestions;
  std::stable_partition(suggestions.begin(), suggestions.end(),
                        [](const planner::Suggestion& suggestion) { return suggestion.makes_it_fit; });
  std::string text = plan_headline(plan);
  for (const auto& suggestion : suggestions) text += "\n  " + printable(suggestion.text());
  return text;
}

}  // namespace vlmtrain::report
