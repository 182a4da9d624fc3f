#include "vlmtrain/report/ladder_text.h"

#include <fmt/format.h>

#include <algorithm>

#include "report/plan/plan_format.h"
#include "report/wrapped_text.h"
#include "vlmtrain/base/printable.h"

namespace vlmtrain::report {

namespace {

std::string format_best_plan(const planner::SavingsRow& row) {
  if (!row.best_estimate) return "does not fit";
  const auto& step_config = row.best_estimate->step_config;
  return fmt::format("{} a pass, {}, {}{}", step_config.micro_batch_size, format_gigabytes(row.planned_bytes),
                     format_seconds(row.best_estimate->step_seconds),
                     step_config.recompute == models::RecomputeBlocks{}
                         ? ""
                         : fmt::format(", {} again", format_recompute(step_config.recompute, row.detail)));
}

}  // namespace

std::string format_savings_table(const std::vector<planner::SavingsRow>& rows, const TextStyle& style) {
  const int columns = std::clamp(style.width, 64, 100);
  const auto bold = [&](const std::string& line) {
    return fmt::format(fmt::runtime(style.color ? "\n\x1b[1m{}\x1b[0m\n" : "\n{}\n"), line);
  };
  std::string text = bold("What saves how much (each rung has what stands above it too)");
  text += fmt::format("  {:<14} {:>9} {:>8}  {}\n", "", "by itself", "step", "the plan for this card");
  for (const auto& row : rows) {
    if (row.unavailable_reason.empty()) {
      text += fmt::format("  {:<14} {:>9} {:>8}  {}\n", row.name, format_gigabytes(row.single_sample_bytes),
                          format_seconds(row.single_sample.step_seconds), format_best_plan(row));
    } else {
      text += wrap_text(fmt::format("  {:<14} ", row.name), fmt::format("- {}", to_printable(row.unavailable_reason)),
                        columns);
    }
  }
  text += wrap_text("  ",
                    "By itself: micro-batches of one sample, or as many as are fixed; all blocks recomputed from that "
                    "rung on. Rehearsed; times are predicted, of a whole step.",
                    columns);
  return text;
}

}  // namespace vlmtrain::report
