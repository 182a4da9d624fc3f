#pragma once

#include <functional>

#include "app/arguments/arguments.h"
#include "vlmtrain/planner/limit.h"
#include "vlmtrain/planner/search.h"
#include "vlmtrain/train/config.h"

namespace vlmtrain::app {

/// The card to plan for: one that is named, or that of this machine. Throws UserError (kUsage).
planner::TargetGpu resolve_target_gpu(const PlanArguments& arguments);

/// The configuration, if there is one, with what the flags say; a 7B model with LoRA if nothing says which. Throws
/// UserError (kUsage), also for arguments that contradict each other.
train::Config make_plan_config(const PlanArguments& arguments);

/// Hands what `vlmtrain plan` with these arguments asks of the planner to `callback`, while the files of its model and
/// of its data set are at hand. Throws UserError.
void make_plan_request(const PlanArguments& arguments,
                       const std::function<void(const planner::PlanRequest&)>& callback);

}  // namespace vlmtrain::app
