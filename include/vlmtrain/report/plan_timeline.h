#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "vlmtrain/planner/dry_run.h"
#include "vlmtrain/planner/plan.h"

namespace vlmtrain::report {

/// One HTML file without anything to load from elsewhere: the memory of a plan's last rehearsed step, by component,
/// over its allocations, with the peak, the reserved bytes and the limit. REQUIRES: the plan has a timeline.
std::string render_plan_timeline(const planner::Plan& plan);

using Timeline = std::vector<planner::TimelinePoint>;

int64_t sum_allocated_bytes(const planner::TimelinePoint& point);

/// The event with the most allocated; of equal ones the first. REQUIRES: there is one.
size_t find_peak_event(const Timeline& timeline);

/// A stretch of a step.
struct Phase {
  size_t first_event = 0;
  int micro_batch = 0;  ///< from 1; 0 for the optimizer
  std::string pass;     ///< "forward", "backward" or "optimizer"
};

/// A step's phases, from where its events were: a micro-batch begins with the first event of input, model or loss after
/// a backward pass. Events that belong to no pass, such as frees between passes, stay with the phase before them.
std::vector<Phase> find_phases(const Timeline& timeline);

/// The events to draw, ascending: all, or, of more than `max_points`, the first, the last, and of equal stretches those
/// with the least and the most allocated. REQUIRES: most >= 4.
std::vector<size_t> downsample(const Timeline& timeline, size_t max_points);

}  // namespace vlmtrain::report
