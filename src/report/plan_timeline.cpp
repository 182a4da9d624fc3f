#include "vlmtrain/report/plan_timeline.h"

#include <fmt/format.h>

#include <array>
#include <numeric>

#include "report/page.h"
#include "report/plan_memory.h"
#include "report/plan_timeline_points.h"
#include "report/plan_words.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/number_words.h"
#include "vlmtrain/base/printable.h"
#include "vlmtrain/report/plan_text.h"

namespace vlmtrain::report {

namespace {

using memory::Component;

/// More could not be told apart, even looking closer; with them the file stays below 1 MB.
constexpr size_t kMostPoints = 20'000;

struct Layer {
  Component component;
  const char* key;  ///< its colour in plan_timeline.css
};

/// From the bottom of the picture to its top: first what stays through a step.
constexpr std::array kLayers{Layer{Component::kWeights, "weights"},     Layer{Component::kOptimizer, "optimizer"},
                             Layer{Component::kGradients, "gradients"}, Layer{Component::kWorkspace, "workspace"},
                             Layer{Component::kOther, "other"},         Layer{Component::kInput, "input"},
                             Layer{Component::kVision, "vision"},       Layer{Component::kLanguage, "language"},
                             Layer{Component::kMasks, "masks"},         Layer{Component::kLoss, "loss"}};
static_assert(kLayers.size() == memory::kComponents);

std::string escaped(std::string_view text) {
  return html_escaped(printable(text));
}

int64_t bytes_of(const planner::TimelinePoint& point, const Layer& layer) {
  return point.by_component[static_cast<size_t>(layer.component)];
}

/// Strings by number, in the order in which they were first asked for.
class Names {
 public:
  size_t number_of(const std::string& name) {
    const auto [entry, added] = numbers_.try_emplace(name, list_.size());
    if (added) list_.push_back(name);
    return entry->second;
  }
  const std::vector<std::string>& list() const { return list_; }

 private:
  std::map<std::string, size_t> numbers_;
  std::vector<std::string> list_;
};

/// Rows as plan_timeline.js reads them.
nlohmann::json point_rows(const Timeline& timeline, const std::vector<size_t>& events, Names& places) {
  auto rows = nlohmann::json::array();
  planner::TimelinePoint before;
  size_t event_before = 0;
  for (const size_t event : events) {
    const auto& point = timeline[event];
    auto row =
        nlohmann::json::array({event - event_before, places.number_of(place_words(point.place, point.backward))});
    for (size_t i = 0; i < kLayers.size(); ++i) {
      const int64_t change = bytes_of(point, kLayers[i]) - bytes_of(before, kLayers[i]);
      if (change != 0) row.insert(row.end(), {i, change});
    }
    const int64_t change = point.reserved_bytes - before.reserved_bytes;
    if (change != 0) row.insert(row.end(), {kLayers.size(), change});
    rows.push_back(std::move(row));
    before = point;
    event_before = event;
  }
  return rows;
}

nlohmann::json data_of(const planner::Plan& plan, const std::vector<size_t>& events) {
  const Timeline& timeline = plan.detail.timeline;
  auto components = nlohmann::json::array();
  for (const auto& layer : kLayers) components.push_back({{"key", layer.key}});
  auto phases = nlohmann::json::array();
  for (const auto& phase : phases_of(timeline)) phases.push_back({phase.first_event, phase.micro_batch, phase.pass});
  Names places;
  auto points = point_rows(timeline, events, places);
  const int64_t beside = plan.limit.context_bytes + plan.limit.communication_bytes;
  return {{"components", components},
          {"phases", phases},
          {"points", std::move(points)},
          {"places", places.list()},
          {"events", timeline.size()},
          {"peak_event", peak_event(timeline)},
          {"limit_bytes", plan.limit.limit_bytes},
          {"card_bytes", plan.limit.card_bytes - beside}};
}

std::string component_rows(const planner::TimelinePoint& peak) {
  const int64_t allocated = allocated_bytes(peak);
  std::string rows;
  for (size_t i = kLayers.size(); i-- > 0;) {
    const Layer& layer = kLayers[i];
    const int64_t bytes = bytes_of(peak, layer);
    rows += fmt::format(
        "<tr><td><span class=\"swatch\" style=\"background:var(--{})\"></span>{}</td><td>{}</td><td>{:.0f} %</td>"
        "<td data-cursor=\"{}\"></td></tr>\n",
        layer.key, memory::name_of(layer.component), html_escaped(gigabytes(bytes)),
        100 * static_cast<double>(bytes) / static_cast<double>(allocated), i);
  }
  rows += fmt::format(
      "<tr class=\"total\"><td>allocated</td><td>{}</td><td>100 %</td><td data-cursor=\"allocated\"></td></tr>\n",
      html_escaped(gigabytes(allocated)));
  rows += fmt::format(
      "<tr><td><span class=\"swatch line\" style=\"background:var(--reserved)\"></span>reserved</td><td>{}</td>"
      "<td></td><td data-cursor=\"{}\"></td></tr>",
      html_escaped(gigabytes(peak.reserved_bytes)), kLayers.size());
  return rows;
}

/// What PyTorch's memory is in, and what is beside it.
std::string card_rows(const planner::Plan& plan) {
  std::string rows;
  const auto add = [&](const char* style, const std::string& name, int64_t bytes) {
    rows += fmt::format("<tr{}><td>{}</td><td>{}</td></tr>\n", style, escaped(name), html_escaped(gigabytes(bytes)));
  };
  add("", "reserved by PyTorch", plan.chosen.peaks.reserved_bytes);
  const std::string measured = plan.card.context_measured ? "" : " (not measured)";
  add("", fmt::format("CUDA context{}", measured), plan.limit.context_bytes);
  if (plan.limit.communication_bytes > 0) add("", "NCCL (estimated)", plan.limit.communication_bytes);
  add(" class=\"total\"", "in use", plan.total_bytes());
  add("", fmt::format("margin ({:g} %)", plan.limit.margin_percent), plan.limit.margin_bytes);
  if (plan.fits) {
    add("", "free", plan.limit.card_bytes - plan.limit.margin_bytes - plan.total_bytes());
  } else {
    add("", "missing", missing_bytes(plan));
  }
  add(" class=\"total\"", "card", plan.limit.card_bytes);
  return rows;
}

std::string fact_rows(const planner::Plan& plan) {
  std::string rows;
  for (const auto& fact : plan_facts(plan)) {
    rows += fmt::format("<dt>{}</dt><dd>{}</dd>\n", escaped(fact.name), escaped(fact.text));
  }
  return rows;
}

std::string peak_note(const planner::Plan& plan, const planner::TimelinePoint& peak) {
  if (allocated_bytes(peak) == plan.detail.peak.allocated_bytes) return {};
  return fmt::format(" An earlier step took a little more, {}: {}.", gigabytes(plan.detail.peak.allocated_bytes),
                     place_words(plan.detail.peak.place, plan.detail.peak.backward));
}

std::string notes(const planner::Plan& plan, size_t shown) {
  const Timeline& timeline = plan.detail.timeline;
  int rehearsed = 0;
  for (const auto& phase : phases_of(timeline)) rehearsed = std::max(rehearsed, phase.micro_batch);
  std::string text = fmt::format("The last of the rehearsed steps, on a virtual card: {} allocations and frees.",
                                 grouped(std::ssize(timeline)));
  if (rehearsed < plan.accumulation_steps()) {
    text += fmt::format(" It has {} of the {} micro-batches; the others do what the last of these does.", rehearsed,
                        plan.accumulation_steps());
  }
  if (shown < timeline.size()) {
    text += fmt::format(
        " Drawn are {} of them: of each short stretch those with the least and the most memory, so that its "
        "peak stays.",
        grouped(static_cast<int64_t>(shown)));
  }
  return text +
         " The limit is what the card has for PyTorch beside context and margin. Nothing here was measured on a "
         "GPU.";
}

}  // namespace

std::string plan_timeline_html(const planner::Plan& plan) {
  const Timeline& timeline = plan.detail.timeline;
  VLMTRAIN_CHECK(!timeline.empty(), "a plan without a timeline");
  const auto events = thinned(timeline, kMostPoints);
  const auto& peak = timeline[peak_event(timeline)];
  return filled_page("plan_timeline.html", {{"title", escaped(fmt::format("{}: memory of a step", plan.model))},
                                            {"style", std::string(resources().at("common.css")) +
                                                          std::string(resources().at("plan_timeline.css"))},
                                            {"answer_class", plan.fits ? "fits" : "fails"},
                                            {"headline", escaped(plan_headline(plan))},
                                            {"components", component_rows(peak)},
                                            {"peak_place", escaped(place_words(peak.place, peak.backward))},
                                            {"peak_note", html_escaped(peak_note(plan, peak))},
                                            {"card", card_rows(plan)},
                                            {"facts", fact_rows(plan)},
                                            {"notes", html_escaped(notes(plan, events.size()))},
                                            {"data", script_json(data_of(plan, events))},
                                            {"script", std::string(resources().at("plan_timeline.js"))}});
}

}  // namespace vlmtrain::report
