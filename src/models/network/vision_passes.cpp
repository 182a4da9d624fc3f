#include "models/network/vision_passes.h"

#include <algorithm>

namespace vlmtrain::models {

namespace {

/// The grids of a pass; a grid of several frames may be spread over passes.
struct PassGrids {
  std::vector<data::PatchGrid> patch_grids;
  int64_t patches = 0;  ///< of all grids
};

/// Fills passes with frames in order until the next frame would exceed `rows_per_pass`.
std::vector<PassGrids> split_grids(const std::vector<data::PatchGrid>& patch_grids, int64_t rows_per_pass) {
  std::vector<PassGrids> pass_grids(1);
  for (const auto& grid : patch_grids) {
    const int64_t patches_per_frame = grid.patches_per_frame();
    // An empty pass takes at least one frame, even if it exceeds the limit.
    for (int64_t remaining = grid.frames; remaining > 0;) {
      if (pass_grids.back().patches > 0 && pass_grids.back().patches + patches_per_frame > rows_per_pass)
        pass_grids.emplace_back();
      const int64_t num_fitting_frames = (rows_per_pass - pass_grids.back().patches) / patches_per_frame;
      const int64_t frames = std::clamp<int64_t>(num_fitting_frames, 1, remaining);
      pass_grids.back().patch_grids.push_back({frames, grid.rows, grid.columns});
      pass_grids.back().patches += frames * patches_per_frame;
      remaining -= frames;
    }
  }
  return pass_grids;
}

/// Assigns each segment to the pass with its rows. REQUIRES: no segment crosses a pass boundary.
void assign_dropout_segments(const std::vector<nn::DropoutSegment>& dropout_segments,
                             std::vector<VisionInput>& passes) {
  auto dropout_segment = dropout_segments.begin();
  for (auto& pass : passes) {
    for (int64_t rows = pass.pixel_values.size(0); rows > 0 && dropout_segment != dropout_segments.end();
         ++dropout_segment) {
      pass.dropout_segments.push_back(*dropout_segment);
      rows -= dropout_segment->row_weight;
    }
  }
}

void assign_modalities(const at::Tensor& modalities, std::vector<VisionInput>& passes) {
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
  if (vision.patch_grids.empty()) {
    for (const auto& rows : vision.pixel_values.split(rows_per_pass)) passes.push_back({rows, {}});
  } else {
    int64_t first = 0;
    for (auto& pass : split_grids(vision.patch_grids, rows_per_pass)) {
      passes.push_back({vision.pixel_values.narrow(0, first, pass.patches), std::move(pass.patch_grids)});
      first += pass.patches;
    }
  }
  assign_dropout_segments(vision.dropout_segments, passes);
  assign_modalities(vision.modalities, passes);
  return passes;
}

}  // namespace vlmtrain::models
