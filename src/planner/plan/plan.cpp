#include "vlmtrain/planner/plan.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>

#include "planner/plan/plan_json.h"

namespace vlmtrain::planner {

namespace {

nlohmann::ordered_json estimate_json(const StepEstimate& estimate, const Plan& plan) {
  return {{"micro_batch_size", estimate.step_config.micro_batch_size},
          {"gradient_accumulation_steps", plan.workload.samples_per_rank() / estimate.step_config.micro_batch_size},
          {"recompute", blocks_json(estimate.step_config.recompute)},
          {"vision_tiles_per_pass", estimate.step_config.vision_tiles_per_pass},
          {"loss_chunk_rows", estimate.step_config.loss_chunk_rows},
          {"copies_ahead", estimate.step_config.copies_ahead},
          {"reserved_peak_bytes", estimate.peaks.reserved_bytes},
          {"total_bytes", plan.total_bytes(estimate)},
          {"step_seconds", estimate.step_seconds},
          {"tokens_per_second", estimate.tokens_per_second},
          {"fits", estimate.fits},
          {"rehearsed", estimate.from_dry_run}};
}

nlohmann::ordered_json memory_json(const Plan& plan) {
  const StepPeaks peaks = plan.peaks();
  auto json = peak_bytes_json(plan.detail.peak);
  json.update({{"workspace_bytes", plan.detail.peak.by_component[static_cast<size_t>(memory::Component::kWorkspace)]},
               {"context_bytes", plan.limit.context_bytes},
               {"communication_bytes", plan.limit.communication_bytes},
               {"allocated_peak_bytes", peaks.allocated_bytes},
               {"reserved_peak_bytes", peaks.reserved_bytes},
               {"total_bytes", plan.total_bytes()},
               {"fragmentation_bytes", peaks.reserved_bytes - peaks.allocated_bytes},
               {"context_measured", plan.target.context_measured}});
  return json;
}

nlohmann::ordered_json peak_json(const memory::Peak& peak) {
  return {{"during", memory::to_string(peak.tag.component)},
          {"block", peak.tag.block < 0 ? nlohmann::ordered_json() : nlohmann::ordered_json(peak.tag.block)},
          {"pass", peak.backward ? "backward" : "forward"}};
}

nlohmann::ordered_json cost_json(const Cost& cost) {
  return {{"product_operations", cost.matmul_flops},
          {"attention_operations", cost.attention_flops},
          {"bytes_moved", cost.bytes_moved},
          {"launches", cost.kernel_launches},
          {"seconds", cost.seconds}};
}

nlohmann::ordered_json average_json(const AverageStep& average, const Plan& plan) {
  auto samples = nlohmann::ordered_json::array();
  int64_t tokens = 0;
  for (const auto& [shape, count] : average.samples) {
    samples.push_back({{"samples", count},
                       {"images", shape.num_media - shape.num_videos},
                       {"video_frames", shape.video_frames},
                       {"tokens", shape.tokens}});
    tokens += count * shape.tokens;
  }
  return {{"samples", samples},
          {"tokens_per_sample", static_cast<double>(tokens) / static_cast<double>(plan.workload.samples_per_rank())},
          {"allocated_peak_bytes", average.peaks.allocated_bytes},
          {"reserved_peak_bytes", average.peaks.reserved_bytes},
          {"step_seconds", average.step_seconds},
          {"tokens_per_second", average.tokens_per_second},
          {"samples_per_second", average.samples_per_second}};
}

/// The rank with the highest peak first.
nlohmann::ordered_json rank_steps_json(std::vector<RankStep> steps) {
  if (steps.empty()) return nullptr;
  std::ranges::stable_sort(steps, std::greater{}, [](const RankStep& step) { return step.peaks.reserved_bytes; });
  auto json = nlohmann::ordered_json::array();
  for (const auto& step : steps) {
    json.push_back({{"rank", step.rank},
                    {"drawn_step", step.sampled_step},
                    {"allocated_peak_bytes", step.peaks.allocated_bytes},
                    {"reserved_peak_bytes", step.peaks.reserved_bytes}});
  }
  return json;
}

}  // namespace

std::string Suggestion::text() const {
  if (arguments.empty()) return note;
  return fmt::format("{}: {}", fmt::join(arguments, " "), note);
}

StepPeaks Plan::peaks() const {
  return split && split->peaks.reserved_bytes > best.peaks.reserved_bytes ? split->peaks : best.peaks;
}

nlohmann::ordered_json Plan::to_json() const {
  auto alternatives_json = nlohmann::ordered_json::array();
  for (const auto& estimate : alternatives) alternatives_json.push_back(estimate_json(estimate, *this));
  auto json = plan_summary_json({.fits = fits,
                                 .model = model,
                                 .job = job,
                                 .mode = mode,
                                 .step_config = best.step_config,
                                 .workload = workload,
                                 .worst = worst,
                                 .detail = detail,
                                 .suggestions = suggestions,
                                 .effort = effort});
  json.update(
      {{"expandable_segments", best.step_config.expandable_segments},
       {"copies_ahead", best.step_config.copies_ahead},
       {"card", target.description},
       {"card_bytes", limit.gpu_bytes},
       {"others_bytes", target.other_process_bytes},
       {"margin_bytes", limit.margin_bytes},
       {"margin_percent", limit.margin_percent},
       {"limit_bytes", limit.limit_bytes},
       {"memory", memory_json(*this)},
       {"peak", peak_json(detail.peak)},
       {"step_seconds", best.step_seconds},
       {"tokens_per_second", best.tokens_per_second},
       {"rehearsed_step_cost", cost_json(costs.total)},
       {"predicted",
        "step_seconds and tokens_per_second are computed from counted operations and data sheets, not measured"},
       {"alternatives", alternatives_json},
       {"cut", split ? split->to_json() : nullptr}});
  if (average) json["average"] = average_json(*average, *this);
  json["communication"] = communication ? communication->to_json() : nullptr;
  json["ranks"] = rank_steps_json(rank_steps);
  return json;
}

}  // namespace vlmtrain::planner
