#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <string>

#include "vlmtrain/planner/plan.h"

namespace vlmtrain::train {

/// What a run fixed when it started, as its checkpoints keep it. A resumed run takes it from there, whatever memory is
/// free by then: other micro-batches add gradients up in another order.
struct SavedPlan {
  planner::StepConfig step_config;
  int64_t limit_bytes = 0;  ///< that the run was planned for

  /// `limit_key`: the name of the limit.
  nlohmann::ordered_json to_json(const char* limit_key) const;
  /// Throws UserError (kBadData) that names `source`.
  static SavedPlan from_json(const nlohmann::ordered_json& json, const char* limit_key, const std::string& source);
};

/// What the configuration fixes, and what was kept for all else.
planner::StepConstraints constrain_to_saved_config(const planner::StepConstraints& requested,
                                                   const planner::StepConfig& saved);

}  // namespace vlmtrain::train
