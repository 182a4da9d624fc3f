#include "report/plan_timeline_points.h"

#include <algorithm>
#include <numeric>

namespace vlmtrain::report {

namespace {

using memory::Component;

bool less_allocated(const planner::TimelinePoint& left, const planner::TimelinePoint& right) {
  return allocated_bytes(left) < allocated_bytes(right);
}

bool begins_forward(const planner::TimelinePoint& point) {
  const Component component = point.place.component;
  return !point.backward &&
         (component == Component::kInput || component == Component::kVision || component == Component::kLanguage ||
          component == Component::kMasks || component == Component::kLoss);
}

}  // namespace

int64_t allocated_bytes(const planner::TimelinePoint& point) {
  return std::accumulate(point.by_component.begin(), point.by_component.end(), int64_t{0});
}

size_t peak_event(const Timeline& timeline) {
  return static_cast<size_t>(std::max_element(timeline.begin(), timeline.end(), less_allocated) - timeline.begin());
}

std::vector<Phase> phases_of(const Timeline& timeline) {
  std::vector<Phase> phases{{0, 1, "forward"}};
  for (size_t event = 0; event < timeline.size(); ++event) {
    const auto& point = timeline[event];
    const Phase& now = phases.back();
    if (point.backward) {
      if (now.pass == "forward") phases.push_back({event, now.micro_batch, "backward"});
    } else if (point.place.component == Component::kOptimizer) {
      if (now.pass != "optimizer") phases.push_back({event, 0, "optimizer"});
    } else if (begins_forward(point) && now.pass == "backward") {
      phases.push_back({event, now.micro_batch + 1, "forward"});
    }
  }
  return phases;
}

std::vector<size_t> thinned(const Timeline& timeline, size_t most) {
  const size_t count = timeline.size();
  std::vector<size_t> kept;
  if (count <= most) {
    kept.resize(count);
    std::iota(kept.begin(), kept.end(), size_t{0});
    return kept;
  }
  const size_t stretches = (most - 2) / 2;
  kept.push_back(0);
  for (size_t i = 0; i < stretches; ++i) {
    const auto first = timeline.begin() + static_cast<std::ptrdiff_t>(i * count / stretches);
    const auto end = timeline.begin() + static_cast<std::ptrdiff_t>((i + 1) * count / stretches);
    const auto least = std::min_element(first, end, less_allocated);
    const auto largest = std::max_element(first, end, less_allocated);
    const auto [earlier, later] = std::minmax(least, largest);
    kept.push_back(static_cast<size_t>(earlier - timeline.begin()));
    kept.push_back(static_cast<size_t>(later - timeline.begin()));
  }
  kept.push_back(count - 1);
  kept.erase(std::unique(kept.begin(), kept.end()), kept.end());
  return kept;
}

}  // namespace vlmtrain::report
