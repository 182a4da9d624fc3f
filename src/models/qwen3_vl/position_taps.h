#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "vlmtrain/data/sample.h"

namespace vlmtrain::models::qwen3_vl {

/// Where the patches of a pass read the square table of learned positions, stretched over each frame with its corners
/// on the frame's (bilinear, align_corners): four entries and their weights a patch, computed in fp32 as transformers
/// does. Patches come token by token, as in qwen2_vl::PatchLayout.
struct PositionInterpolation {
  std::vector<int64_t> indices;  ///< [4 · patches]: all first ones, all second ones …; rows of the table
  std::vector<float> weights;    ///< as entries

  /// `side` of the table; `merge` patches on the side of a token, of which rows and columns are multiples.
  static PositionInterpolation make(std::span<const data::PatchGrid> grids, int64_t side, int64_t merge);
};

inline constexpr int64_t kInterpolationPoints = 4;

}  // namespace vlmtrain::models::qwen3_vl
