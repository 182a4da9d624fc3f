#pragma once

#include <functional>

#include "app/arguments/arguments.h"
#include "vlmtrain/planner/plan.h"
#include "vlmtrain/planner/target_gpu.h"
#include "vlmtrain/train/config.h"

namespace vlmtrain::app {

/// Returns the GPU to plan for: the named one, or that of this machine. Throws UserError (kUsage).
planner::TargetGpu resolve_target_gpu(const PlanArguments& arguments);

/// Returns the configuration with the flags applied; without a model a 7B one with LoRA. Throws
/// UserError (kUsage) also for contradictory arguments.
train::Config make_plan_config(const PlanArguments& arguments);

/// Calls `callback` with the planner's request of `vlmtrain plan`, while temporary files of its
/// model exist. Throws UserError.
void make_plan_request(const PlanArguments& arguments,
                       const std::function<void(const planner::PlanRequest&)>& callback);

}  // namespace vlmtrain::app
