#include "planner/plan_json.h"
#include "vlmtrain/planner/host_plan.h"

namespace vlmtrain::planner {

nlohmann::ordered_json HostPlan::to_json() const {
  auto json = planned_json({.fits = fits,
                            .model = model,
                            .job = job,
                            .mode = mode,
                            .choices = choices,
                            .workload = workload,
                            .worst = worst,
                            .detail = detail,
                            .suggestions = suggestions,
                            .effort = effort});
  auto memory = peak_bytes_json(detail.peak);
  memory.update({{"allocated_peak_bytes", peak_bytes},
                 {"total_bytes", total_bytes()},
                 {"fragmentation_bytes", kept_bytes},
                 {"process_bytes", limit.process_bytes},
                 {"samples_ahead_bytes", limit.samples_bytes},
                 {"libraries_bytes", limit.libraries_bytes}});
  json.update({{"device", "cpu"},
               {"cut", cut ? cut->to_json() : nullptr},
               {"room_bytes", limit.room.bytes},
               {"room_bound", limit.room.bound},
               {"margin_bytes", limit.margin_bytes},
               {"margin_percent", limit.margin_percent},
               {"limit_bytes", limit.tensor_bytes},
               {"memory", memory}});
  return json;
}

}  // namespace vlmtrain::planner
