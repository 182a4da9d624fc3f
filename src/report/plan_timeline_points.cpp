#include "report/plan_timeline_points.h"

#include <algorithm>
#include <numeric>

namespace vlmtrain::report {

namespace {

using memory::Component;

bool has_less_allocated(const planner::TimelinePoint& left, const planner::TimelinePoint& right) {
  return sum_allocated_bytes(left) < sum_allocated_bytes(right);
}

bool is_forward_start(const planner::TimelinePoint& point) {
  const Component component = point.tag.component;
  return !point.backward &&
         (component == Component::kInput || component == Component::kVision || component == Component::kLanguage ||
          component == Component::kMasks || component == Component::kLoss);
}

}  // namespace

int64_t sum_allocated_bytes(const planner::TimelinePoint& point) {
  return std::accumulate(point.by_component.begin(), point.by_component.end(), int64_t{0});
}

size_t find_peak_event(const Timeline& timeline) {
  return static_cast<size_t>(std::max_element(timeline.begin(), timeline.end(), has_less_allocated) - timeline.begin());
}

std::vector<Phase> find_phases(const Timeline& timeline) {
  std::vector<Phase> phases{{0, 1, "forward"}};
  for (size_t event = 0; event < timeline.size(); ++event) {
    const auto& point = timeline[event];
    const Phase& current_phase = phases.back();
    if (point.backward) {
      if (current_phase.pass == "forward") phases.push_back({event, current_phase.micro_batch, "backward"});
    } else if (point.tag.component == Component::kOptimizer) {
      if (current_phase.pass != "optimizer") phases.push_back({event, 0, "optimizer"});
    } else if (is_forward_start(point) && current_phase.pass == "backward") {
      phases.push_back({event, current_phase.micro_batch + 1, "forward"});
    }
  }
  return phases;
}

std::vector<size_t> downsample(const Timeline& timeline, size_t max_points) {
  const size_t count = timeline.size();
  std::vector<size_t> indices;
  if (count <= max_points) {
    indices.resize(count);
    std::iota(indices.begin(), indices.end(), size_t{0});
    return indices;
  }
  const size_t num_ranges = (max_points - 2) / 2;
  indices.push_back(0);
  for (size_t i = 0; i < num_ranges; ++i) {
    const auto first = timeline.begin() + static_cast<std::ptrdiff_t>(i * count / num_ranges);
    const auto end = timeline.begin() + static_cast<std::ptrdiff_t>((i + 1) * count / num_ranges);
    const auto min_point = std::min_element(first, end, has_less_allocated);
    const auto max_point = std::max_element(first, end, has_less_allocated);
    const auto [earlier, later] = std::minmax(min_point, max_point);
    indices.push_back(static_cast<size_t>(earlier - timeline.begin()));
    indices.push_back(static_cast<size_t>(later - timeline.begin()));
  }
  indices.push_back(count - 1);
  indices.erase(std::unique(indices.begin(), indices.end()), indices.end());
  return indices;
}

}  // namespace vlmtrain::report
