#pragma once

#include "app/process/model_folder.h"
#include "app/settings/arguments.h"
#include "vlmtrain/planner/plan.h"
#include "vlmtrain/planner/target.h"
#include "vlmtrain/train/config.h"

namespace vlmtrain::app {

/// Returns the GPU to plan for: that of --gpu or --gpu-gb, else the GPU of this machine. Throws
/// UserError (kUsage) if the machine has no GPU, or if both flags are given.
planner::TargetGpu resolve_target_gpu(const PlanArguments& arguments);

/// Returns the configuration of --config with the overrides and flags applied. Without model.path,
/// it plans a 7B preset with LoRA. Throws UserError (kUsage) for an invalid configuration and for
/// arguments that contradict each other.
train::Config make_plan_config(const PlanArguments& arguments);

/// What `vlmtrain plan` plans for.
struct PlanInput {
  ModelFolder model;             ///< has the files that the request reads
  planner::PlanRequest request;  ///< `model` must outlive it
};

/// Returns the request that `vlmtrain plan` sends to the planner. Logs remarks on the model and the
/// samples. Throws UserError.
PlanInput make_plan_input(const PlanArguments& arguments);

}  // namespace vlmtrain::app
