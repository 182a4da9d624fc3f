#include "vlmtrain/report/ladder_text.h"

#include <fmt/format.h>

#include <algorithm>

#include "report/plan_words.h"
#include "report/wrapped_text.h"
#include "vlmtrain/base/printable.h"

namespace vlmtrain::report {

namespace {

std::string planned_words(const planner::Rung& rung) {
  if (!rung.planned) return "does not fit";
  const auto& choices = rung.planned->choices;
  return fmt::format("{} a pass, {}, {}{}", choices.micro_batch_size, gigabytes(rung.planned_bytes),
                     seconds_words(rung.planned->step_seconds),
                     choices.recompute == models::RecomputeBlocks{}
                         ? ""
                         : fmt::format(", {} again", recompute_words(choices.recompute, rung.detail)));
}

}  // namespace

std::string ladder_text(const std::vector<planner::Rung>& rungs, const TextStyle& style) {
  const int columns = std::clamp(style.width, 64, 100);
  const auto bold = [&](const std::string& line) {
    return fmt::format(fmt::runtime(style.colour ? "\n\x1b[1m{}\x1b[0m\n" : "\n{}\n"), line);
  };
  std::string text = bold("What saves how much (each rung has what stands above it too)");
  text += fmt::format("  {:<14} {:>9} {:>8}  {}\n", "", "by itself", "step", "the plan for this card");
  for (const auto& rung : rungs) {
    if (rung.absent.empty()) {
      text += fmt::format("  {:<14} {:>9} {:>8}  {}\n", rung.name, gigabytes(rung.single_bytes),
                          seconds_words(rung.single.step_seconds), planned_words(rung));
    } else {
      text += wrapped(fmt::format("  {:<14} ", rung.name), fmt::format("- {}", printable(rung.absent)), columns);
    }
  }
  text += wrapped("  ",
                  "By itself: micro-batches of one sample, or as many as are fixed; all blocks recomputed from that "
                  "rung on. Rehearsed; times are predicted, of a whole step.",
                  columns);
  return text;
}

}  // namespace vlmtrain::report
