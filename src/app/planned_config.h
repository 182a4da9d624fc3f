#pragma once

#include "app/plan_arguments.h"
#include "vlmtrain/planner/limit.h"
#include "vlmtrain/train/config.h"

namespace vlmtrain::app {

/// The card to plan for: one that is named, or that of this machine. Throws UserError (kUsage).
planner::TargetGpu resolve_target_gpu(const PlanArguments& arguments);

/// The configuration, if there is one, with what the flags say; a 7B model with LoRA if nothing says which. Throws
/// UserError (kUsage), also for arguments that contradict each other.
train::Config make_plan_config(const PlanArguments& arguments);

}  // namespace vlmtrain::app
