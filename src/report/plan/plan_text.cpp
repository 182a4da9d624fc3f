#include "vlmtrain/report/plan_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>

#include "report/format/sections.h"
#include "report/format/text_layout.h"
#include "report/plan/plan_format.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/base/text_format.h"

namespace vlmtrain::report {

namespace {

/// Rows of the table of alternatives, so that it stays short; --json has all rows.
constexpr size_t kMaxAlternativeRows = 15;

// Parameters of ANSI's Select Graphic Rendition.
constexpr const char* kPlain = "";
constexpr const char* kBold = "1";
constexpr const char* kFaint = "2";
constexpr const char* kRed = "31";
constexpr const char* kGreen = "32";
constexpr const char* kBoldGreen = "1;32";
constexpr const char* kBoldRed = "1;31";

/// A builder of the text of a plan. Single use.
class PlanTextBuilder {
 public:
  PlanTextBuilder(const planner::Plan& plan, const TextStyle& style) : plan_(plan), writer_(style) {}

  std::string text() {
    writer_.add_lines(plan_.fits ? kBoldGreen : kBoldRed,
                      wrap_text("", format_plan_headline(plan_), writer_.columns()));
    writer_.add_lines(kPlain, "");
    writer_.add_table(make_plan_facts(plan_));
    add_memory_chart();
    add_alternatives();
    add_suggestions();
    writer_.add_lines(kPlain, "");
    writer_.add_note(
        fmt::format("Found in {} with {} dry runs on a virtual GPU. Step times are predicted from counted operations, "
                    "not measured.",
                    format_seconds(plan_.planning_stats.seconds), plan_.planning_stats.num_dry_runs),
        "");
    return writer_.text();
  }

 private:
  void add_memory_chart() {
    // Columns before the bars (kBarIndent), and one that remains free at the end.
    constexpr int kLabelColumns = 36;
    const auto& peak = plan_.detail.peak;
    writer_.add_heading(fmt::format("Memory at the peak: {}", format_memory_tag(peak.tag, peak.is_backward)));
    const auto rows = make_memory_rows(plan_);
    BarScale scale{.max_value = 0, .columns = writer_.columns() - kLabelColumns, .unicode = writer_.unicode()};
    for (const auto& row : rows) scale.max_value += row.bytes;
    add_gpu_size_marker(scale);
    int64_t offset = 0;
    int color_index = 0;
    bool has_total_row = false;
    for (const auto& row : rows) {
      const bool is_used = row.kind == MemoryRow::Kind::kUsed;
      if (!has_total_row && !is_used && offset == plan_.total_bytes()) {
        writer_.add_lines(kBold, fmt::format("  {:<22} {:>8}", "in use", format_gigabytes(plan_.total_bytes())));
        has_total_row = true;
      }
      const BarFill fill = is_used                              ? BarFill::kSolid
                           : row.kind == MemoryRow::Kind::kFree ? BarFill::kLight
                                                                : BarFill::kMedium;
      writer_.add_bar(fmt::format("  {:<22} {:>8}", row.name, format_gigabytes(row.bytes)),
                      draw_bar(offset, row.bytes, fill, scale),
                      is_used ? kBarColors[color_index++ % kBarColors.size()] : kFaint);
      offset += row.bytes;
    }
  }

  /// Adds the mark above the bars at the end of the GPU's memory. Bars continue after it if the
  /// plan does not fit.
  void add_gpu_size_marker(const BarScale& scale) {
    const int end = static_cast<int>(static_cast<double>(plan_.limit.allowed_bytes) /
                                     static_cast<double>(scale.max_value) * scale.columns);
    std::string gpu_size_marker = fmt::format("GPU {} |", format_gigabytes(plan_.limit.allowed_bytes));
    if (end < count_columns(gpu_size_marker))
      gpu_size_marker = fmt::format("| GPU {}", format_gigabytes(plan_.limit.allowed_bytes));
    const int indent = gpu_size_marker.front() == '|' ? std::max(0, end - 1) : end - count_columns(gpu_size_marker);
    writer_.add_lines(kFaint, fmt::format("{:{}}{}", "", kBarIndent + indent, gpu_size_marker));
  }

  void add_alternatives() {
    const auto alternatives = make_alternatives_table(plan_, kMaxAlternativeRows);
    const int64_t num_vision_blocks = plan_.detail.num_vision_blocks;
    writer_.add_heading(fmt::format("Alternatives (micro-batch x accumulation; {}{} language blocks)",
                                    num_vision_blocks > 0 ? fmt::format("{} vision and ", num_vision_blocks) : "",
                                    plan_.detail.num_language_blocks));
    writer_.add_table(alternatives.table);
    if (!alternatives.best_config_passes.empty())
      writer_.add_note(fmt::format("uses {}", alternatives.best_config_passes), "> ");
    if (alternatives.has_interpolated_rows)
      writer_.add_note("interpolated between dry runs; the other rows are dry runs", "~ ");
    if (alternatives.num_hidden_alternatives > 0)
      writer_.add_note(fmt::format("{} more rows: --json", alternatives.num_hidden_alternatives));
  }

  void add_suggestions() {
    if (plan_.suggestions.empty()) return;
    const bool has_arguments = std::any_of(plan_.suggestions.begin(), plan_.suggestions.end(),
                                           [](const auto& suggestion) { return !suggestion.arguments.empty(); });
    writer_.add_heading(fmt::format("{}{}", plan_.fits ? "Suggestions to make it faster" : "Suggestions to make it fit",
                                    has_arguments ? " (append one line to the command)" : ""));
    for (const auto& suggestion : plan_.suggestions) {
      const char* const color = plan_.fits ? kPlain : suggestion.makes_plan_fit ? kGreen : kRed;
      if (suggestion.arguments.empty()) {
        const char* const bullet = suggestion.makes_plan_fit ? "  + " : "  - ";
        writer_.add_lines(color, wrap_text(bullet, to_printable(suggestion.note), writer_.columns()));
      } else {
        // A line of its own without breaks, so that the user can copy it.
        writer_.add_lines(color, "  " + to_printable(fmt::format("{}", fmt::join(suggestion.arguments, " "))));
        writer_.add_note(suggestion.note, "      ");
      }
    }
  }

  /// Columns before the bars: name, bytes and spaces (add_memory_chart()).
  static constexpr int kBarIndent = 35;
  /// Colors of the used ranges, in the order of make_memory_rows().
  static constexpr std::array kBarColors{"34", "36", "35", "32", "33", "31", "90", "90", "90", "90", "90"};

  const planner::Plan& plan_;
  TextWriter writer_;
};

}  // namespace

std::string format_plan(const planner::Plan& plan, const TextStyle& style) {
  return PlanTextBuilder(plan, style).text();
}

std::string format_remark(const std::string& remark, const TextStyle& style) {
  return wrap_text("", remark, TextWriter(style).columns());
}

namespace {

/// Returns "recomputing all blocks" or "recomputing 9 of 27 vision and 12 of 24 language blocks";
/// empty without recomputation.
std::string format_recompute_clause(const planner::Plan& plan) {
  const auto& blocks = plan.best_estimate.step_config.recompute;
  const auto& detail = plan.detail;
  if (blocks == models::RecomputeBlockCounts{}) return {};
  if (blocks == models::RecomputeBlockCounts{detail.num_vision_blocks, detail.num_language_blocks})
    return "recomputing all blocks";
  std::vector<std::string> recomputed_towers;
  const auto add = [&](const char* tower, int64_t recomputed, int64_t total) {
    if (recomputed == 0) return;
    recomputed_towers.push_back(recomputed == total ? fmt::format("all {}", tower)
                                                    : fmt::format("{} of {} {}", recomputed, total, tower));
  };
  add("vision", blocks.vision, detail.num_vision_blocks);
  add("language", blocks.language, detail.num_language_blocks);
  std::string text = fmt::format("recomputing {} blocks", fmt::join(recomputed_towers, " and "));
  if (blocks.language_selective == blocks.language && blocks.language > 0) return text + " except attention outputs";
  if (blocks.language_selective > 0) {
    text += fmt::format(" (attention outputs kept in {})", blocks.language_selective);
  }
  return text;
}

/// Returns " with training.micro_batch_size=16" for the constraints; empty without any.
std::string format_constraints(const planner::StepConstraints& constraints) {
  std::vector<std::string> settings;
  const auto add = [&](std::string_view key, const auto& value) {
    settings.push_back(fmt::format("{}={}", key, value));
  };
  if (constraints.micro_batch_size) add(keys::training::kMicroBatchSize, *constraints.micro_batch_size);
  if (!constraints.recompute.is_auto()) add(keys::memory::kRecompute, constraints.recompute.text);
  if (constraints.vision_tiles_per_pass) add(keys::memory::kVisionTilesPerPass, *constraints.vision_tiles_per_pass);
  if (constraints.loss_chunk_rows) add(keys::memory::kLossChunkRows, *constraints.loss_chunk_rows);
  return settings.empty() ? "" : fmt::format(" with {}", fmt::join(settings, " and "));
}

/// Returns the settings that need the least memory: "micro-batch 1, recomputing all blocks".
std::string format_min_memory_config(const planner::Plan& plan) {
  const planner::StepConfig& step_config = plan.best_estimate.step_config;
  std::string text = fmt::format("micro-batch {}", step_config.micro_batch_size);
  if (const std::string blocks = format_recompute_clause(plan); !blocks.empty()) text += ", " + blocks;
  if (step_config.vision_tiles_per_pass > 0) text += ", " + format_vision_pass(plan);
  if (step_config.loss_chunk_rows != planner::StepConfig{}.loss_chunk_rows) {
    text += ", loss in chunks of " + pluralize(step_config.loss_chunk_rows, "row");
  }
  return text;
}

/// Returns the headline of a plan that does not fit.
std::string format_unfit_headline(const planner::Plan& plan) {
  const int64_t usable_bytes = plan.limit.allowed_bytes - plan.limit.margin_bytes;
  const std::string other_processes_clause =
      plan.gpu().other_process_bytes > 0
          ? fmt::format(" (other processes use {} of it)", format_gigabytes(plan.gpu().other_process_bytes))
          : "";
  return fmt::format(
      "does not fit: {} of {} needs at least {}{} ({}), the GPU has {} after its margin{}; {} are missing",
      format_training_method(plan), to_printable(plan.model), format_gigabytes(plan.total_bytes()),
      format_constraints(plan.constraints), format_min_memory_config(plan), format_gigabytes(usable_bytes),
      other_processes_clause, format_gigabytes(compute_shortfall_bytes(plan)));
}

/// Returns an addition to the number of ranks.
const char* format_sharding_suffix(engine::ShardingStrategy sharding) {
  switch (sharding) {
    case engine::ShardingStrategy::kNone:
      return "";
    case engine::ShardingStrategy::kOptimizer:
      return " with sharded optimizer state";
    case engine::ShardingStrategy::kFull:
      return " with sharded weights, gradients and optimizer state";
    case engine::ShardingStrategy::kHybrid:
      return " with sharded weights, gradients and optimizer state within each node";
  }
  return "";
}

}  // namespace

std::string format_plan_headline(const planner::Plan& plan) {
  if (!plan.fits) return format_unfit_headline(plan);
  std::string ranks;
  if (plan.workload.world_size > 1) {
    ranks = fmt::format(" x {} ranks{}", plan.workload.world_size, format_sharding_suffix(plan.job.sharding));
  }
  const planner::Workload& workload = plan.workload;
  const std::string batch =
      workload.packing ? fmt::format("{} of {}", pluralize(workload.samples_per_rank() * workload.world_size, "sample"),
                                     pluralize(workload.global_batch_size, "pack"))
                       : fmt::format("global batch {}", workload.global_batch_size);
  std::string text =
      fmt::format("fits: {:.1f} of {:.1f} GB, micro-batch {} x accumulation {}{} = {}",
                  to_gigabytes(plan.total_bytes()), to_gigabytes(plan.limit.allowed_bytes),
                  plan.best_estimate.step_config.micro_batch_size, plan.gradient_accumulation_steps(), ranks, batch);
  if (plan.split)
    text += fmt::format(" for the largest samples, {:.1f} micro-batches per step on average",
                        plan.split->mean_micro_batches_per_step);
  if (const std::string blocks = format_recompute_clause(plan); !blocks.empty()) text += ", " + blocks;
  return text + ", " + format_training_method(plan);
}

std::string format_plan_error(const planner::Plan& plan) {
  auto suggestions = plan.suggestions;
  std::stable_partition(suggestions.begin(), suggestions.end(),
                        [](const planner::Suggestion& suggestion) { return suggestion.makes_plan_fit; });
  std::string text = format_plan_headline(plan);
  for (const auto& suggestion : suggestions) text += "\n  " + to_printable(suggestion.text());
  return text;
}

namespace {

/// Returns "micro-batch 2, 61.2 GB, 2.76 s, recompute vision 9" or "does not fit".
std::string format_best_plan(const planner::SavingsRow& row) {
  if (!row.best_estimate) return "does not fit";
  const auto& step_config = row.best_estimate->step_config;
  return fmt::format("micro-batch {}, {}, {}{}", step_config.micro_batch_size, format_gigabytes(row.best_total_bytes),
                     format_seconds(row.best_estimate->step_seconds),
                     step_config.recompute == models::RecomputeBlockCounts{}
                         ? ""
                         : fmt::format(", recompute {}", format_recompute(step_config.recompute, row.detail)));
}

}  // namespace

std::string format_savings_table(const std::vector<planner::SavingsRow>& rows, const TextStyle& style) {
  Table table{.headers = {"", "1 sample", "step", "plan for this GPU"}, .alignment = "lrrl"};
  for (const auto& row : rows) {
    if (row.unavailable_reason.empty()) {
      table.rows.push_back({{row.name, format_gigabytes(row.single_sample_bytes),
                             format_seconds(row.single_sample_estimate.step_seconds), format_best_plan(row)}});
    } else {
      table.rows.push_back({{row.name, "", "", "- " + row.unavailable_reason}});
    }
  }
  TextWriter writer(style);
  writer.add_heading("Memory by saving option (each row includes the options above it)");
  writer.add_table(table);
  writer.add_note(
      fmt::format("Column \"1 sample\": micro-batches of one sample, or of {} if set. From the row \"recomputation\" "
                  "down, all blocks are recomputed. Memory is from dry runs; times are predicted for a whole step.",
                  keys::training::kMicroBatchSize));
  return writer.text();
}

}  // namespace vlmtrain::report
