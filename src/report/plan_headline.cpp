#include <fmt/ranges.h>

#include <algorithm>

#include "report/plan/plan_format.h"
#include "report/plan_memory.h"
#include "vlmtrain/base/bytes.h"
#include "vlmtrain/base/number_words.h"
#include "vlmtrain/base/printable.h"
#include "vlmtrain/report/plan_text.h"

namespace vlmtrain::report {

namespace {

/// "recomputing all blocks", "recomputing 9 of 27 vision and 12 of 24 language blocks"; empty for none.
std::string format_recomputation(const planner::Plan& plan) {
  const auto& blocks = plan.best.step_config.recompute;
  const auto& detail = plan.detail;
  if (blocks == models::RecomputeBlocks{}) return {};
  if (blocks == models::RecomputeBlocks{detail.vision_blocks, detail.language_blocks}) return "recomputing all blocks";
  std::vector<std::string> towers;
  const auto add = [&](const char* tower, int64_t recomputed, int64_t total) {
    if (recomputed == 0) return;
    towers.push_back(recomputed == total ? fmt::format("all {}", tower)
                                         : fmt::format("{} of {} {}", recomputed, total, tower));
  };
  add("vision", blocks.vision, detail.vision_blocks);
  add("language", blocks.language, detail.language_blocks);
  std::string text = fmt::format("recomputing {} blocks", fmt::join(towers, " and "));
  if (blocks.language_selective == blocks.language && blocks.language > 0) return text + " but for attention";
  if (blocks.language_selective > 0) {
    text += fmt::format(" (attention kept in {})", blocks.language_selective);
  }
  return text;
}

/// " with training.micro_batch_size=16", of what a person fixed; empty for nothing.
std::string format_constraints(const planner::StepConstraints& constraints) {
  std::vector<std::string> keys;
  const auto add = [&](const char* key, const auto& value) { keys.push_back(fmt::format("{}={}", key, value)); };
  if (constraints.micro_batch_size) add("training.micro_batch_size", *constraints.micro_batch_size);
  if (!constraints.recompute.is_auto()) add("memory.recompute", constraints.recompute.text);
  if (constraints.vision_tiles_per_pass) add("memory.vision_tiles_per_pass", *constraints.vision_tiles_per_pass);
  if (constraints.loss_chunk_rows) add("memory.loss_chunk_rows", *constraints.loss_chunk_rows);
  return keys.empty() ? "" : fmt::format(" with {}", fmt::join(keys, " and "));
}

/// The choices that take so little.
std::string format_min_memory_config(const planner::Plan& plan) {
  const planner::StepConfig& step_config = plan.best.step_config;
  std::string text = fmt::format("micro-batch {}", step_config.micro_batch_size);
  if (const std::string blocks = format_recomputation(plan); !blocks.empty()) text += ", " + blocks;
  if (step_config.vision_tiles_per_pass > 0) text += ", " + format_vision_pass(plan);
  if (step_config.loss_chunk_rows != planner::StepConfig{}.loss_chunk_rows) {
    text += ", loss in chunks of " + pluralize(step_config.loss_chunk_rows, "row");
  }
  return text;
}

std::string format_unfit_headline(const planner::Plan& plan) {
  const int64_t usable = plan.limit.gpu_bytes - plan.limit.margin_bytes;
  const std::string other_processes =
      plan.target.other_process_bytes > 0
          ? fmt::format(" (other processes hold {} of it)", format_gigabytes(plan.target.other_process_bytes))
          : "";
  return fmt::format(
      "does not fit: {} of {} needs at least {}{} ({}), the card has {} beside its margin{}; {} are missing",
      format_training(plan), to_printable(plan.model), format_gigabytes(plan.total_bytes()),
      format_constraints(plan.constraints), format_min_memory_config(plan), format_gigabytes(usable), other_processes,
      format_gigabytes(compute_missing_bytes(plan)));
}

const char* format_sharding(engine::Sharding sharding) {
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

std::string format_plan_headline(const planner::Plan& plan) {
  if (!plan.fits) return format_unfit_headline(plan);
  std::string ranks;
  if (plan.workload.world_size > 1) {
    ranks = fmt::format(" x {} ranks{}", plan.workload.world_size, format_sharding(plan.job.sharding));
  }
  const planner::Workload& workload = plan.workload;
  const std::string batch =
      workload.packed ? fmt::format("{} of {}", pluralize(workload.samples_per_rank() * workload.world_size, "sample"),
                                    pluralize(workload.global_batch_size, "pack"))
                      : fmt::format("global batch {}", workload.global_batch_size);
  std::string text = fmt::format("fits: {:.1f} of {:.1f} GB, micro-batch {} x accumulation {}{} = {}",
                                 to_gigabytes(plan.total_bytes()), to_gigabytes(plan.limit.gpu_bytes),
                                 plan.best.step_config.micro_batch_size, plan.accumulation_steps(), ranks, batch);
  if (plan.split)
    text += fmt::format(" for the largest, {:.1f} micro-batches a step on average", plan.split->micro_batches_per_step);
  if (const std::string blocks = format_recomputation(plan); !blocks.empty()) text += ", " + blocks;
  return text + ", " + format_training(plan);
}

std::string format_plan_error(const planner::Plan& plan) {
  auto suggestions = plan.suggestions;
  std::stable_partition(suggestions.begin(), suggestions.end(),
                        [](const planner::Suggestion& suggestion) { return suggestion.makes_it_fit; });
  std::string text = format_plan_headline(plan);
  for (const auto& suggestion : suggestions) text += "\n  " + to_printable(suggestion.text());
  return text;
}

}  // namespace vlmtrain::report
