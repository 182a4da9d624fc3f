#include "report/plan_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <tuple>

#include "report/plan/plan_format.h"
#include "vlmtrain/base/number_words.h"

namespace vlmtrain::report {

namespace {

struct TableCells {
  std::string mark, micro_batch, recomputed, memory, step, tokens_per_second, fits;
};

constexpr int kMinColumnsForSpeed = 74;

std::string format_row(const TableCells& cells, int columns) {
  const std::string speed = columns < kMinColumnsForSpeed ? "" : fmt::format(" {:>9}", cells.tokens_per_second);
  return fmt::format("{:1} {:<11} {:<24} {:>9} {:>8}{}  {}", cells.mark, cells.micro_batch, cells.recomputed,
                     cells.memory, cells.step, speed, cells.fits);
}

/// The alternatives, and the chosen plan among them where it is none: with smaller passes, for example.
std::vector<planner::StepEstimate> list_alternatives(const planner::Plan& plan) {
  std::vector<planner::StepEstimate> estimates = plan.alternatives;
  const auto is_best = [&](const planner::StepEstimate& estimate) {
    return estimate.step_config == plan.best.step_config;
  };
  if (std::any_of(estimates.begin(), estimates.end(), is_best)) return estimates;
  const auto position = std::find_if(estimates.begin(), estimates.end(), [&](const planner::StepEstimate& estimate) {
    return estimate.step_config.micro_batch_size >= plan.best.step_config.micro_batch_size;
  });
  estimates.insert(position, plan.best);
  return estimates;
}

/// The places of the options to show, ascending.
std::vector<size_t> select_rows(const std::vector<planner::StepEstimate>& estimates,
                                const planner::StepConfig& best_config, size_t max_rows) {
  const auto distance = [&](size_t index) {
    const auto& step_config = estimates[index].step_config;
    const auto ratio =
        static_cast<double>(step_config.micro_batch_size) / static_cast<double>(best_config.micro_batch_size);
    return std::tuple(step_config != best_config, std::abs(std::log(ratio)));
  };
  std::vector<size_t> indices(estimates.size());
  std::iota(indices.begin(), indices.end(), size_t{0});
  std::stable_sort(indices.begin(), indices.end(),
                   [&](size_t left, size_t right) { return distance(left) < distance(right); });
  indices.resize(std::min(indices.size(), max_rows));
  std::sort(indices.begin(), indices.end());
  return indices;
}

TableCells make_cells(const planner::StepEstimate& estimate, const planner::Plan& plan) {
  const char* const prefix = estimate.from_dry_run ? "" : "~";
  const int64_t size = estimate.step_config.micro_batch_size;
  return {.mark = estimate.step_config == plan.best.step_config ? ">" : "",
          .micro_batch = fmt::format("{} x {}", size, plan.workload.samples_per_rank() / size),
          .recomputed = format_recompute(estimate.step_config.recompute, plan.detail),
          .memory = fmt::format("{}{}", prefix, format_gigabytes(plan.total_bytes(estimate))),
          .step = fmt::format("{}{}", prefix, format_seconds(estimate.step_seconds)),
          .tokens_per_second = fmt::format("{}{}", prefix, with_commas(std::llround(estimate.tokens_per_second))),
          .fits = estimate.fits ? "yes" : "no"};
}

/// What sets the chosen plan apart from the others, which have the passes of the first.
std::string describe_smaller_passes(const std::vector<planner::StepEstimate>& estimates, const planner::Plan& plan) {
  const planner::StepConfig& best_config = plan.best.step_config;
  const auto differs = [&](const planner::StepEstimate& estimate) {
    return estimate.step_config.vision_tiles_per_pass != best_config.vision_tiles_per_pass ||
           estimate.step_config.loss_chunk_rows != best_config.loss_chunk_rows;
  };
  if (std::none_of(estimates.begin(), estimates.end(), differs)) return {};
  return fmt::format("{} and loss chunks of {}", format_vision_pass(plan),
                     pluralize(best_config.loss_chunk_rows, "row"));
}

}  // namespace

AlternativesTable make_alternatives_table(const planner::Plan& plan, size_t max_rows, int columns) {
  const auto estimates = list_alternatives(plan);
  const TableCells header{"", "micro-batch", "blocks recomputed", "memory", "step", "tokens/s", "fits"};
  AlternativesTable table{.header = format_row(header, columns),
                          .lines = {},
                          .num_hidden = 0,
                          .best_difference = describe_smaller_passes(estimates, plan)};
  for (const size_t index : select_rows(estimates, plan.best.step_config, max_rows)) {
    const planner::StepEstimate& estimate = estimates[index];
    table.lines.push_back({format_row(make_cells(estimate, plan), columns),
                           estimate.step_config == plan.best.step_config, estimate.fits, estimate.from_dry_run});
  }
  table.num_hidden = estimates.size() - table.lines.size();
  return table;
}

}  // namespace vlmtrain::report
