#include "train/room_for_copies.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "vlmtrain/planner/limit.h"

namespace vlmtrain::train {

memory::AvailableHostMemory compute_async_save_budget(const AsyncSaveInputs& inputs, double margin_percent) {
  const auto margin_bytes = std::llround(static_cast<double>(inputs.available.bytes) * margin_percent / 100);
  const int64_t growth_bytes = inputs.ranks * std::max<int64_t>(0, inputs.planned_bytes - inputs.process_bytes);
  const int64_t free_bytes = inputs.available.bytes - inputs.process_bytes - margin_bytes - growth_bytes;
  memory::AvailableHostMemory budget;
  budget.bytes = std::max<int64_t>(0, std::min(free_bytes, inputs.plan_remaining_bytes));
  budget.limit_source =
      free_bytes <= inputs.plan_remaining_bytes ? inputs.available.limit_source : "the run's limit (plan.json)";
  return budget;
}

memory::AvailableHostMemory compute_async_save_budget(const HostRunPlan* host_plan, planner::MemoryMode mode,
                                                      int64_t ranks) {
  AsyncSaveInputs inputs;
  inputs.available = memory::get_available_host_memory();
  inputs.process_bytes = memory::host_bytes();
  inputs.ranks = ranks;
  inputs.plan_remaining_bytes = std::numeric_limits<int64_t>::max();
  if (host_plan != nullptr) {
    inputs.planned_bytes = host_plan->planned_bytes();
    inputs.plan_remaining_bytes = host_plan->remaining_bytes();
  }
  return compute_async_save_budget(inputs, planner::get_margin_percent(mode));
}

}  // namespace vlmtrain::train
