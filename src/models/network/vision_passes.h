#pragma once

#include <cstdint>
#include <vector>

#include "vlmtrain/models/model.h"

namespace vlmtrain::models {

/// `vision` in pieces of at most `rows_per_pass` rows of pixels (0: all at once), in order. A frame of a grid, whose
/// patches see each other, is never cut, so that it may be more.
std::vector<VisionInput> split_vision_passes(const VisionInput& vision, int64_t rows_per_pass);

}  // namespace vlmtrain::models
