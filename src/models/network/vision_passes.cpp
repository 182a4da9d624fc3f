#include "models/network/vision_passes.h"

#include <algorithm>

namespace vlmtrain::models {

namespace {

/// The grids of a pass; a grid of several frames may be spread over passes.
struct GridPass {
  std::vector<data::PatchGrid> grids;
  int64_t patches = 0;  ///< of all grids
};

/// Fills passes with frames in order until the next frame would exceed `rows_per_pass`.
std::vector<GridPass> split_grids(const std::vector<data::PatchGrid>& grids, int64_t rows_per_pass) {
  std::vector<GridPass> passes(1);
  for (const auto& grid : grids) {
    const int64_t patches_per_frame = grid.patches_per_frame();
    // An empty pass takes at least one frame, even if it exceeds the limit.
    for (int64_t remaining = grid.frames; remaining > 0;) {
      if (passes.back().patches > 0 && passes.back().patches + patches_per_frame > rows_per_pass) passes.emplace_back();
      const int64_t available_frames = (rows_per_pass - passes.back().patches) / patches_per_frame;
      const int64_t frames = std::clamp<int64_t>(available_frames, 1, remaining);
      passes.back().grids.push_back({frames, grid.rows, grid.columns});
      passes.back().patches += frames * patches_per_frame;
      remaining -= frames;
    }
  }
  return passes;
}

/// Assigns each unit to the pass with its rows. REQUIRES: no unit crosses a pass boundary.
void distribute_to_passes(const std::vector<nn::DropoutSegment>& dropout_segments, std::vector<VisionInput>& passes) {
  auto segment = dropout_segments.begin();
  for (auto& pass : passes) {
    for (int64_t rows = pass.pixel_values.size(0); rows > 0 && segment != dropout_segments.end(); ++segment) {
      pass.dropout_segments.push_back(*segment);
      rows -= segment->row_share;
    }
  }
}

void distribute_to_passes(const at::Tensor& modalities, std::vector<VisionInput>& passes) {
  if (!modalities.defined()) return;
  int64_t first = 0;
  for (auto& pass : passes) {
    const int64_t rows = pass.pixel_values.size(0);
    pass.modalities = modalities.narrow(0, first, rows);
    first += rows;
  }
}

}  // namespace

std::vector<VisionInput> split_vision_passes(const VisionInput& vision, int64_t rows_per_pass) {
  if (rows_per_pass == 0 || vision.pixel_values.size(0) <= rows_per_pass) return {vision};
  std::vector<VisionInput> passes;
  if (vision.grids.empty()) {
    for (const auto& rows : vision.pixel_values.split(rows_per_pass)) passes.push_back({rows, {}});
  } else {
    int64_t first = 0;
    for (auto& pass : split_grids(vision.grids, rows_per_pass)) {
      passes.push_back({vision.pixel_values.narrow(0, first, pass.patches), std::move(pass.grids)});
      first += pass.patches;
    }
  }
  distribute_to_passes(vision.dropout_segments, passes);
  distribute_to_passes(vision.modalities, passes);
  return passes;
}

}  // namespace vlmtrain::models
