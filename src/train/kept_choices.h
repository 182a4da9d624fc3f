#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <string>

#include "vlmtrain/planner/plan.h"

namespace vlmtrain::train {

/// What a run fixed when it started, as its checkpoints keep it. A resumed run takes it from there, whatever memory is
/// free by then: other micro-batches add gradients up in another order.
struct KeptChoices {
  planner::Choices choices;
  int64_t limit_bytes = 0;  ///< that the run was planned for

  /// `limit_key`: the name of the limit.
  nlohmann::ordered_json to_json(const char* limit_key) const;
  /// Throws UserError (kBadData) that names `source`.
  static KeptChoices of_json(const nlohmann::ordered_json& json, const char* limit_key, const std::string& source);
};

/// What the configuration fixes, and what was kept for all else.
planner::FixedChoices fixed_as_kept(const planner::FixedChoices& asked, const planner::Choices& kept);

}  // namespace vlmtrain::train
