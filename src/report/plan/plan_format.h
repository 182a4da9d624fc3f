#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "vlmtrain/planner/plan.h"

namespace vlmtrain::report {

/// "21.3 GB" of 10⁹ bytes; "<0.1 GB" for what would round to nothing.
std::string format_gigabytes(int64_t bytes);

/// "37 ms", "2.76 s", "20.8 s", "135 s".
std::string format_seconds(double seconds);

/// "none", "all", "vision 9", "vision all, language 12"; "all" is of the model's blocks.
std::string format_recompute(const models::RecomputeBlocks& blocks, const planner::DryRunDetail& detail);

/// "all tiles in one vision pass", "4 tiles a vision pass"; for patches, which are not cut inside a picture or a frame,
/// "one picture a vision pass", "2,048 patches a vision pass".
std::string format_vision_pass(const planner::Plan& plan);

/// "LoRA of rank 16", "full fine-tuning".
std::string format_training(const planner::Plan& plan);

/// Where a step is: "language block 12, backward pass".
std::string format_memory_tag(const memory::MemoryTag& tag, bool backward);

struct PlanFact {
  std::string name;
  std::string text;
};

/// What a plan is for: model, sample, card, margin, context, and how its step is done.
std::vector<PlanFact> list_plan_facts(const planner::Plan& plan);

/// A line of the table of alternatives, and whether it is the plan's own.
struct AlternativeLine {
  std::string text;
  bool is_best = false;
  bool fits = false;
  bool from_dry_run = false;
};

struct AlternativesTable {
  std::string header;
  std::vector<AlternativeLine> lines;
  size_t num_hidden = 0;        ///< alternatives that are not shown
  std::string best_difference;  ///< in its passes, from the others: "1 tile a vision pass and …"; empty if not
};

/// At most `max_rows` alternatives, those with micro-batches nearest to the chosen one, in the plan's order; the chosen
/// one is always there. Lines take up to 74 columns, or up to 64, without tokens per second, if there are fewer
/// `columns`. REQUIRES: most > 0.
AlternativesTable make_alternatives_table(const planner::Plan& plan, size_t max_rows, int columns);

/// A part of the card's memory when the step takes most.
struct MemoryRow {
  enum class Kind { kUsed, kFree, kMargin };

  std::string name;
  int64_t bytes = 0;
  Kind kind = Kind::kUsed;
};

/// From the first byte of the card to the last. The rows that are used sum to plan.total_bytes(), all of them to the
/// card's bytes; where the plan does not fit, nothing is free and they sum to more.
std::vector<MemoryRow> make_memory_rows(const planner::Plan& plan);

/// How much more than the card has would be needed, the margin included; 0 where the plan fits.
int64_t compute_missing_bytes(const planner::Plan& plan);

}  // namespace vlmtrain::report
