#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "vlmtrain/planner/dry_run.h"
#include "vlmtrain/planner/plan.h"

namespace vlmtrain::report {

/// Returns one HTML file without external resources: the memory of the plan's last dry-run step by
/// component, over the allocator's events, with peak, reserved bytes and limit. REQUIRES: the plan
/// has a timeline.
std::string render_plan_timeline(const planner::Plan& plan);

using Timeline = std::vector<planner::TimelinePoint>;

/// Returns the allocated bytes of all components.
int64_t sum_allocated_bytes(const planner::TimelinePoint& point);

/// Returns the first event with the most allocated bytes. REQUIRES: the timeline is not empty.
size_t find_peak_event(const Timeline& timeline);

/// A phase of a step.
struct Phase {
  size_t first_event = 0;
  int micro_batch = 0;  ///< from 1; 0 for the optimizer
  std::string pass;     ///< "forward", "backward" or "optimizer"
};

/// Returns the phases of a step. A micro-batch begins with the first event of input, model or loss
/// after a backward pass. Events outside of passes, such as frees between them, belong to the
/// previous phase.
std::vector<Phase> find_phases(const Timeline& timeline);

/// Returns the indices of the events to draw, in ascending order: all of them or, for more than
/// `max_points`, the first, the last, and the minimum and maximum of stretches of equal length.
/// REQUIRES: max_points >= 4.
std::vector<size_t> downsample(const Timeline& timeline, size_t max_points);

}  // namespace vlmtrain::report
