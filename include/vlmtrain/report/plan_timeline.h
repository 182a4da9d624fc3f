#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "vlmtrain/planner/dry_run.h"
#include "vlmtrain/planner/plan.h"

namespace vlmtrain::report {

/// Returns one HTML file without external resources. It shows the memory of the plan's last dry-run
/// step by component after each event of the allocator, with the peak, the reserved bytes and the
/// limit. REQUIRES: the plan has a timeline.
std::string render_plan_timeline(const planner::Plan& plan);

/// The memory after each allocation and free of a step, in order.
using MemoryTimeline = std::vector<planner::MemoryTimelinePoint>;

/// Returns the allocated bytes of all components.
int64_t sum_allocated_bytes(const planner::MemoryTimelinePoint& point);

/// Returns the first event with the most allocated bytes. REQUIRES: the timeline is not empty.
size_t find_peak_event_index(const MemoryTimeline& timeline);

/// A phase of a step.
struct StepPhase {
  size_t first_event_index = 0;
  int micro_batch_number = 0;  ///< from 1; 0 for the optimizer step
  std::string pass_name;       ///< "forward", "backward" or "optimizer"
};

/// Returns the phases of a step. A micro-batch begins with the first event of input, model or loss
/// after a backward pass. An event outside of passes, such as a free between them, belongs to the
/// previous phase.
std::vector<StepPhase> find_step_phases(const MemoryTimeline& timeline);

/// Returns the indices of the events to draw, in ascending order. If there are more than
/// `max_points` events, these are the first, the last, and the minimum and maximum of intervals of
/// equal length. REQUIRES: max_points >= 4.
std::vector<size_t> downsample_timeline(const MemoryTimeline& timeline, size_t max_points);

}  // namespace vlmtrain::report
