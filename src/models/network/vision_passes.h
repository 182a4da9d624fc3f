#pragma once

#include <cstdint>
#include <vector>

#include "vlmtrain/models/model.h"

namespace vlmtrain::models {

/// Splits `vision` into passes of at most `rows_per_pass` rows of pixels (0: a single pass), in
/// order. A frame of a grid is never split, so a pass may have more rows.
std::vector<VisionInput> split_vision_passes(const VisionInput& vision, int64_t rows_per_pass);

}  // namespace vlmtrain::models
