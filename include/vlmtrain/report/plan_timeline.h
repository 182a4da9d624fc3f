#pragma once

#include <string>

#include "vlmtrain/planner/plan.h"

namespace vlmtrain::report {

/// One HTML file without anything to load from elsewhere: the memory of a plan's last rehearsed step, by component,
/// over its allocations, with the peak, the reserved bytes and the limit. REQUIRES: the plan has a timeline.
std::string render_plan_timeline(const planner::Plan& plan);

}  // namespace vlmtrain::report
