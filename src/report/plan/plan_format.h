#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "report/format/sections.h"
#include "vlmtrain/planner/plan.h"

namespace vlmtrain::report {

/// Returns "21.3 GB" in 10⁹ bytes; "<0.1 GB" if it would round to zero.
std::string format_gigabytes(int64_t bytes);

/// Returns "37 ms", "2.76 s", "20.8 s" or "135 s".
std::string format_seconds(double seconds);

/// Returns "none", "all", "vision 9" or "vision all, language 12". "all" means all blocks of the
/// model. "language 12/4": 4 of the 12 blocks keep their attention outputs.
std::string format_recompute(const models::RecomputeBlockCounts& blocks, const planner::DryRunDetail& detail);

/// Returns "all tiles in one vision pass" or "4 tiles per vision pass". Patches of one image or
/// frame are never split: "one image per vision pass", "2,048 patches per vision pass".
std::string format_vision_pass(const planner::Plan& plan);

/// Returns "LoRA of rank 16" or "full fine-tuning".
std::string format_training_method(const planner::Plan& plan);

/// Returns the position in a step: "language block 12, backward pass".
std::string format_memory_tag(const memory::MemoryTag& tag, bool backward);

/// Returns the facts of a plan: model, sample, average step, GPU, margin, context, settings of the
/// step, ranks. Facts that do not apply are omitted.
Table make_plan_facts(const planner::Plan& plan);

/// The table of alternatives. The row of the config that the plan chose is strong, rows that do not
/// fit are faint.
struct AlternativesTable {
  Table table;
  size_t num_hidden_alternatives = 0;  ///< alternatives without a row
  bool has_interpolated_rows = false;  ///< whether rows are interpolated between dry runs
  /// Passes of the best config if the alternatives have others: "1 tile per vision pass and …";
  /// empty if all are equal.
  std::string best_config_passes;
};

/// Returns the best config and the alternatives with the closest micro-batch sizes: at most
/// `max_rows` rows in the order of the plan. REQUIRES: max_rows > 0.
AlternativesTable make_alternatives_table(const planner::Plan& plan, size_t max_rows);

/// A range of the GPU's memory at the peak of the step.
struct MemoryRow {
  enum class Kind { kUsed, kFree, kMargin };

  std::string name;
  int64_t bytes = 0;
  Kind kind = Kind::kUsed;
};

/// Returns the ranges from the first to the last byte of the GPU. The used ones sum up to
/// plan.total_bytes(). All of them sum up to the GPU's memory, or to more if the plan does not fit.
std::vector<MemoryRow> make_memory_rows(const planner::Plan& plan);

/// Returns the memory that evaluations need in addition to training steps; 0 without evaluations.
int64_t compute_evaluation_bytes(const planner::Plan& plan);

/// Returns the memory that the GPU lacks, the margin included; 0 if the plan fits.
int64_t compute_shortfall_bytes(const planner::Plan& plan);

}  // namespace vlmtrain::report
