#include "planner/plan/plan_json.h"
#include "vlmtrain/planner/cpu_plan.h"

namespace vlmtrain::planner {

nlohmann::ordered_json CpuPlan::to_json() const {
  auto json = plan_summary_json({.fits = fits,
                                 .model = model,
                                 .job = job,
                                 .mode = mode,
                                 .step_config = step_config,
                                 .workload = workload,
                                 .worst = worst,
                                 .detail = detail,
                                 .suggestions = suggestions,
                                 .effort = effort});
  auto memory = peak_bytes_json(detail.peak);
  memory.update({{"allocated_peak_bytes", peak_bytes},
                 {"total_bytes", total_bytes()},
                 {"fragmentation_bytes", malloc_cached_bytes},
                 {"process_bytes", limit.process_bytes},
                 {"samples_ahead_bytes", limit.samples_bytes},
                 {"libraries_bytes", limit.libraries_bytes}});
  json.update({{"device", "cpu"},
               {"cut", split ? split->to_json() : nullptr},
               {"room_bytes", limit.available.bytes},
               {"room_bound", limit.available.limit_source},
               {"margin_bytes", limit.margin_bytes},
               {"margin_percent", limit.margin_percent},
               {"limit_bytes", limit.tensor_bytes},
               {"memory", memory}});
  return json;
}

}  // namespace vlmtrain::planner
