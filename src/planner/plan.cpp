#include "vlmtrain/planner/plan.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>

#include "planner/plan_json.h"

namespace vlmtrain::planner {

namespace {

nlohmann::ordered_json option_json(const Option& option, const Plan& plan) {
  return {{"micro_batch_size", option.choices.micro_batch_size},
          {"gradient_accumulation_steps", plan.workload.samples_per_rank() / option.choices.micro_batch_size},
          {"recompute", blocks_json(option.choices.recompute)},
          {"vision_tiles_per_pass", option.choices.vision_tiles_per_pass},
          {"loss_chunk_rows", option.choices.loss_chunk_rows},
          {"copies_ahead", option.choices.copies_ahead},
          {"reserved_peak_bytes", option.peaks.reserved_bytes},
          {"total_bytes", plan.total_bytes(option)},
          {"step_seconds", option.step_seconds},
          {"tokens_per_second", option.tokens_per_second},
          {"fits", option.fits},
          {"rehearsed", option.rehearsed}};
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
               {"context_measured", plan.card.context_measured}});
  return json;
}

nlohmann::ordered_json peak_json(const memory::Peak& peak) {
  return {{"during", memory::name_of(peak.place.component)},
          {"block", peak.place.block < 0 ? nlohmann::ordered_json() : nlohmann::ordered_json(peak.place.block)},
          {"pass", peak.backward ? "backward" : "forward"}};
}

nlohmann::ordered_json cost_json(const Cost& cost) {
  return {{"product_operations", cost.product_operations},
          {"attention_operations", cost.attention_operations},
          {"bytes_moved", cost.bytes_moved},
          {"launches", cost.launches},
          {"seconds", cost.seconds}};
}

nlohmann::ordered_json average_json(const AverageStep& average, const Plan& plan) {
  auto samples = nlohmann::ordered_json::array();
  int64_t tokens = 0;
  for (const auto& [shape, count] : average.samples) {
    samples.push_back({{"samples", count},
                       {"images", shape.images - shape.videos},
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

/// The rank with most first.
nlohmann::ordered_json rank_steps_json(std::vector<RankStep> steps) {
  if (steps.empty()) return nullptr;
  std::ranges::stable_sort(steps, std::greater{}, [](const RankStep& step) { return step.peaks.reserved_bytes; });
  auto json = nlohmann::ordered_json::array();
  for (const auto& step : steps) {
    json.push_back({{"rank", step.rank},
                    {"drawn_step", step.drawn_step},
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

int64_t Workload::samples_per_rank() const {
  const int64_t units = global_batch_size / world_size;
  if (!packed) return units;
  const int64_t samples = std::max<int64_t>(1, std::llround(packed->per_pack * static_cast<double>(units)));
  constexpr int64_t kParts = 4;
  const auto even = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(samples))) / kParts;
  const int64_t part = packed->micro_batch > 0 ? packed->micro_batch : std::max<int64_t>(1, even);
  return std::max<int64_t>(1, (samples + part / 2) / part) * part;
}

StepPeaks Plan::peaks() const {
  return cut && cut->peaks.reserved_bytes > chosen.peaks.reserved_bytes ? cut->peaks : chosen.peaks;
}

nlohmann::ordered_json Plan::to_json() const {
  auto others = nlohmann::ordered_json::array();
  for (const auto& option : alternatives) others.push_back(option_json(option, *this));
  auto json = planned_json({.fits = fits,
                            .model = model,
                            .job = job,
                            .mode = mode,
                            .choices = chosen.choices,
                            .workload = workload,
                            .worst = worst,
                            .detail = detail,
                            .suggestions = suggestions,
                            .effort = effort});
  json.update(
      {{"expandable_segments", chosen.choices.expandable_segments},
       {"copies_ahead", chosen.choices.copies_ahead},
       {"card", card.description},
       {"card_bytes", limit.card_bytes},
       {"others_bytes", card.others_bytes},
       {"margin_bytes", limit.margin_bytes},
       {"margin_percent", limit.margin_percent},
       {"limit_bytes", limit.limit_bytes},
       {"memory", memory_json(*this)},
       {"peak", peak_json(detail.peak)},
       {"step_seconds", chosen.step_seconds},
       {"tokens_per_second", chosen.tokens_per_second},
       {"rehearsed_step_cost", cost_json(costs.total)},
       {"predicted",
        "step_seconds and tokens_per_second are computed from counted operations and data sheets, not measured"},
       {"alternatives", others},
       {"cut", cut ? cut->to_json() : nullptr}});
  if (average) json["average"] = average_json(*average, *this);
  json["communication"] = communication ? communication->to_json() : nullptr;
  json["ranks"] = rank_steps_json(rank_steps);
  return json;
}

}  // namespace vlmtrain::planner
