#include "vlmtrain/report/plan_timeline.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <numeric>

#include "report/format/html.h"
#include "report/format/sections.h"
#include "report/plan/plan_format.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/text_format.h"
#include "vlmtrain/report/plan_text.h"

namespace vlmtrain::report {

namespace {

using memory::Component;

/// Maximum number of points drawn. More cannot be distinguished, even zoomed in; with this limit
/// the file stays below 1 MB.
constexpr size_t kMaxTimelinePoints = 20'000;

/// A layer of the chart: the memory of one component.
struct ChartSeries {
  Component component;
  const char* key;  ///< names its color in plan_timeline.css
};

/// Layers from the bottom of the chart to the top. Components that persist through a step come
/// first.
constexpr std::array kAllChartSeries{
    ChartSeries{Component::kWeights, "weights"},     ChartSeries{Component::kOptimizer, "optimizer"},
    ChartSeries{Component::kGradients, "gradients"}, ChartSeries{Component::kWorkspace, "workspace"},
    ChartSeries{Component::kOther, "other"},         ChartSeries{Component::kInput, "input"},
    ChartSeries{Component::kVision, "vision"},       ChartSeries{Component::kLanguage, "language"},
    ChartSeries{Component::kMasks, "masks"},         ChartSeries{Component::kLoss, "loss"}};
static_assert(kAllChartSeries.size() == memory::kNumComponents);

int64_t get_component_bytes(const planner::MemoryTimelinePoint& point, const ChartSeries& series) {
  return point.bytes_by_component[static_cast<size_t>(series.component)];
}

/// A table of strings, numbered in the order of first use.
class StringTable {
 public:
  size_t find_or_add(const std::string& name) {
    const auto [entry, is_new] = indices_.try_emplace(name, strings_.size());
    if (is_new) strings_.push_back(name);
    return entry->second;
  }
  const std::vector<std::string>& strings() const { return strings_; }

 private:
  std::map<std::string, size_t> indices_;
  std::vector<std::string> strings_;
};

/// Returns rows in the format of data.points in plan_timeline.js: differences from the previous
/// row, which keeps the file small.
nlohmann::json make_point_rows(const MemoryTimeline& timeline, const std::vector<size_t>& event_indices,
                               StringTable& tags) {
  auto rows = nlohmann::json::array();
  planner::MemoryTimelinePoint previous_point;
  size_t previous_event_index = 0;
  for (const size_t event : event_indices) {
    const auto& point = timeline[event];
    auto row = nlohmann::json::array(
        {event - previous_event_index, tags.find_or_add(format_memory_tag(point.tag, point.is_backward))});
    for (size_t i = 0; i < kAllChartSeries.size(); ++i) {
      const int64_t change =
          get_component_bytes(point, kAllChartSeries[i]) - get_component_bytes(previous_point, kAllChartSeries[i]);
      if (change != 0) row.insert(row.end(), {i, change});
    }
    const int64_t change = point.reserved_bytes - previous_point.reserved_bytes;
    if (change != 0) row.insert(row.end(), {kAllChartSeries.size(), change});
    rows.push_back(std::move(row));
    previous_point = point;
    previous_event_index = event;
  }
  return rows;
}

/// Returns the data that plan_timeline.js reads.
nlohmann::json make_timeline_data(const planner::Plan& plan, const std::vector<size_t>& event_indices) {
  const MemoryTimeline& timeline = plan.detail.timeline;
  auto components = nlohmann::json::array();
  for (const auto& series : kAllChartSeries) components.push_back({{"key", series.key}});
  auto phase_rows = nlohmann::json::array();
  for (const auto& phase : find_step_phases(timeline))
    phase_rows.push_back({phase.first_event_index, phase.micro_batch_number, phase.pass_name});
  StringTable tags;
  auto point_rows = make_point_rows(timeline, event_indices, tags);
  const int64_t overhead_bytes = plan.limit.context_bytes + plan.limit.communication_bytes;
  return {{"components", components},
          {"phases", phase_rows},
          {"points", std::move(point_rows)},
          {"places", tags.strings()},
          {"events", timeline.size()},
          {"peak_event", find_peak_event_index(timeline)},
          {"limit_bytes", plan.limit.limit_bytes},
          {"gpu_bytes", plan.limit.allowed_bytes - overhead_bytes}};
}

/// Returns table rows: the bytes of each component at the peak, in the order of the layers from top
/// to bottom. A model without a vision tower has no row for it.
std::string make_component_rows(const planner::MemoryTimelinePoint& peak, bool has_vision_tower) {
  const int64_t allocated = sum_allocated_bytes(peak);
  std::string rows;
  for (size_t i = kAllChartSeries.size(); i-- > 0;) {
    const ChartSeries& series = kAllChartSeries[i];
    const int64_t bytes = get_component_bytes(peak, series);
    if (series.component == Component::kVision && bytes == 0 && !has_vision_tower) continue;
    rows += fmt::format(
        "<tr><td><span class=\"swatch\" style=\"background:var(--{})\"></span>{}</td><td>{}</td><td>{:.0f} %</td>"
        "<td data-cursor=\"{}\"></td></tr>\n",
        series.key, memory::to_string(series.component), escape_html(format_gigabytes(bytes)),
        100 * static_cast<double>(bytes) / static_cast<double>(allocated), i);
  }
  rows += fmt::format(
      "<tr class=\"total\"><td>allocated</td><td>{}</td><td>100 %</td><td data-cursor=\"allocated\"></td></tr>\n",
      escape_html(format_gigabytes(allocated)));
  rows += fmt::format(
      "<tr><td><span class=\"swatch line\" style=\"background:var(--reserved)\"></span>reserved</td><td>{}</td>"
      "<td></td><td data-cursor=\"{}\"></td></tr>",
      escape_html(format_gigabytes(peak.reserved_bytes)), kAllChartSeries.size());
  return rows;
}

/// Returns the memory of PyTorch, the memory outside of it, and the free memory.
Table make_gpu_table(const planner::Plan& plan) {
  Table table{.headers = {"part", "bytes"}};
  const auto add = [&](const std::string& name, int64_t bytes, Emphasis emphasis = Emphasis::kNormal) {
    table.rows.push_back({{name, format_gigabytes(bytes)}, emphasis});
  };
  add("reserved by PyTorch", plan.best_estimate.peaks.reserved_bytes);
  add(plan.gpu().is_context_measured ? "CUDA context" : "CUDA context (not measured)", plan.limit.context_bytes);
  if (plan.limit.communication_bytes > 0) add("NCCL (estimated)", plan.limit.communication_bytes);
  if (const int64_t bytes = compute_evaluation_bytes(plan); bytes > 0) add("evaluations", bytes);
  add("in use", plan.total_bytes(), Emphasis::kStrong);
  add(fmt::format("margin ({:g} %)", plan.limit.margin_percent), plan.limit.margin_bytes);
  if (plan.fits) {
    add("free", plan.limit.allowed_bytes - plan.limit.margin_bytes - plan.total_bytes());
  } else {
    add("missing", compute_shortfall_bytes(plan));
  }
  add("GPU", plan.limit.allowed_bytes, Emphasis::kStrong);
  return table;
}

/// Returns a note if an earlier step of the dry run had a higher peak than the step of the chart.
std::string format_peak_note(const planner::Plan& plan, const planner::MemoryTimelinePoint& peak) {
  if (sum_allocated_bytes(peak) == plan.detail.peak.allocated_bytes) return {};
  return fmt::format(" An earlier step had a higher peak, {}: {}.", format_gigabytes(plan.detail.peak.allocated_bytes),
                     format_memory_tag(plan.detail.peak.tag, plan.detail.peak.is_backward));
}

std::string format_chart_notes(const planner::Plan& plan, size_t num_shown) {
  const MemoryTimeline& timeline = plan.detail.timeline;
  int num_micro_batches = 0;
  for (const auto& phase : find_step_phases(timeline))
    num_micro_batches = std::max(num_micro_batches, phase.micro_batch_number);
  std::string text = fmt::format("The last step of the dry run on a virtual GPU: {} allocations and frees.",
                                 format_with_commas(std::ssize(timeline)));
  if (num_micro_batches < plan.gradient_accumulation_steps()) {
    text += fmt::format(" It has {} of the {} micro-batches; the others repeat the last of these.", num_micro_batches,
                        plan.gradient_accumulation_steps());
  }
  if (num_shown < timeline.size()) {
    text += fmt::format(
        " The chart draws {} of them: the least and the most memory of each short interval, which preserves peaks.",
        format_with_commas(static_cast<int64_t>(num_shown)));
  }
  return text + " The limit is the GPU's memory without context and margin. Nothing here was measured on a GPU.";
}

}  // namespace

std::string render_plan_timeline(const planner::Plan& plan) {
  const MemoryTimeline& timeline = plan.detail.timeline;
  VLMTRAIN_CHECK(!timeline.empty(), "the plan has no timeline");
  const auto event_indices = downsample_timeline(timeline, kMaxTimelinePoints);
  const auto& peak = timeline[find_peak_event_index(timeline)];
  return fill_page_template(
      "plan_timeline.html",
      {{"title", escape_html_line(fmt::format("{}: memory of a step", plan.model))},
       {"style", std::string(resources().at("common.css")) + std::string(resources().at("plan_timeline.css"))},
       {"answer_class", plan.fits ? "fits" : "fails"},
       {"headline", escape_html_line(format_plan_headline(plan))},
       {"components", make_component_rows(peak, plan.detail.num_vision_blocks > 0)},
       {"peak_place", escape_html_line(format_memory_tag(peak.tag, peak.is_backward))},
       {"peak_note", escape_html(format_peak_note(plan, peak))},
       {"gpu", render_section_html({.title = "GPU memory", .tables = {make_gpu_table(plan)}})},
       {"facts", render_section_html({.title = "Planned for", .tables = {make_plan_facts(plan)}})},
       {"notes", escape_html(format_chart_notes(plan, event_indices.size()))},
       {"data", escape_script_json(make_timeline_data(plan, event_indices))},
       {"script", std::string(resources().at("plan_timeline.js"))}});
}

namespace {

using memory::Component;

bool has_fewer_allocated_bytes(const planner::MemoryTimelinePoint& left, const planner::MemoryTimelinePoint& right) {
  return sum_allocated_bytes(left) < sum_allocated_bytes(right);
}

/// Returns whether the event begins a forward pass if it follows a backward pass.
bool is_forward_start(const planner::MemoryTimelinePoint& point) {
  const Component component = point.tag.component;
  return !point.is_backward &&
         (component == Component::kInput || component == Component::kVision || component == Component::kLanguage ||
          component == Component::kMasks || component == Component::kLoss);
}

}  // namespace

int64_t sum_allocated_bytes(const planner::MemoryTimelinePoint& point) {
  return std::accumulate(point.bytes_by_component.begin(), point.bytes_by_component.end(), int64_t{0});
}

size_t find_peak_event_index(const MemoryTimeline& timeline) {
  return static_cast<size_t>(std::max_element(timeline.begin(), timeline.end(), has_fewer_allocated_bytes) -
                             timeline.begin());
}

std::vector<StepPhase> find_step_phases(const MemoryTimeline& timeline) {
  std::vector<StepPhase> phases{{0, 1, "forward"}};
  for (size_t event = 0; event < timeline.size(); ++event) {
    const auto& point = timeline[event];
    const StepPhase& current_phase = phases.back();
    if (point.is_backward) {
      if (current_phase.pass_name == "forward") phases.push_back({event, current_phase.micro_batch_number, "backward"});
    } else if (point.tag.component == Component::kOptimizer) {
      if (current_phase.pass_name != "optimizer") phases.push_back({event, 0, "optimizer"});
    } else if (is_forward_start(point) && current_phase.pass_name == "backward") {
      phases.push_back({event, current_phase.micro_batch_number + 1, "forward"});
    }
  }
  return phases;
}

std::vector<size_t> downsample_timeline(const MemoryTimeline& timeline, size_t max_points) {
  const size_t count = timeline.size();
  std::vector<size_t> indices;
  if (count <= max_points) {
    indices.resize(count);
    std::iota(indices.begin(), indices.end(), size_t{0});
    return indices;
  }
  // Two points for each range, besides the first and the last.
  const size_t num_ranges = (max_points - 2) / 2;
  indices.push_back(0);
  for (size_t i = 0; i < num_ranges; ++i) {
    const auto first = timeline.begin() + static_cast<std::ptrdiff_t>(i * count / num_ranges);
    const auto end = timeline.begin() + static_cast<std::ptrdiff_t>((i + 1) * count / num_ranges);
    const auto min_point = std::min_element(first, end, has_fewer_allocated_bytes);
    const auto max_point = std::max_element(first, end, has_fewer_allocated_bytes);
    const auto [earlier, later] = std::minmax(min_point, max_point);
    indices.push_back(static_cast<size_t>(earlier - timeline.begin()));
    indices.push_back(static_cast<size_t>(later - timeline.begin()));
  }
  indices.push_back(count - 1);
  indices.erase(std::unique(indices.begin(), indices.end()), indices.end());
  return indices;
}

}  // namespace vlmtrain::report
