#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "models/qwen2_vl/config.h"
#include "vlmtrain/data/sample.h"

namespace vlmtrain::models::qwen2_vl {

/// How the tower orders the patches of a pass, and which of them see each other: computed on the host from the grids
/// alone. Patches come token by token (merge_size² in a row), the tokens of a frame row by row. In the tower the tokens
/// of a window lie side by side: windows of a frame row by row, cut off at the frame's right and lower edge.
struct PatchLayout {
  std::vector<int64_t> token_order;          ///< [tokens], the token that the tower's place i takes
  std::vector<int64_t> inverse_token_order;  ///< [tokens], its inverse: where in the tower token i is
  std::vector<int64_t> patch_order;          ///< [patches], as token_order; both empty where the tower has no windows
  std::vector<int64_t> positions;       ///< [2 · patches], row of each patch in its frame, then column; tower's order
  std::vector<int64_t> frame_patches;   ///< of each frame
  std::vector<int64_t> window_patches;  ///< of each window; empty where the tower has none

  /// REQUIRES: rows and columns are multiples of merge_size.
  static PatchLayout make(std::span<const data::PatchGrid> grids, const VisionConfig& config);
};

}  // namespace vlmtrain::models::qwen2_vl
