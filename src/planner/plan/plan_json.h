#pragma once

#include <nlohmann/json_fwd.hpp>

#include "vlmtrain/planner/plan.h"

namespace vlmtrain::planner {

/// Returns {"language_blocks", "selective_language_blocks", "vision_blocks"}.
nlohmann::ordered_json make_recompute_blocks_json(const models::RecomputeBlockCounts& blocks);

}  // namespace vlmtrain::planner
