#include "models/network/vision_passes.h"

#include <algorithm>

namespace vlmtrain::models {

namespace {

struct GridPass {
  std::vector<data::TileGrid> grids;
  int64_t tiles = 0;
};

std::vector<GridPass> grid_passes(const std::vector<data::TileGrid>& grids, int64_t tiles_per_pass) {
  std::vector<GridPass> passes(1);
  for (const auto& grid : grids) {
    const int64_t frame = grid.tiles_per_frame();
    for (int64_t left = grid.frames; left > 0;) {
      if (passes.back().tiles > 0 && passes.back().tiles + frame > tiles_per_pass) passes.emplace_back();
      const int64_t room = (tiles_per_pass - passes.back().tiles) / frame;
      const int64_t frames = std::clamp<int64_t>(room, 1, left);
      passes.back().grids.push_back({frames, grid.rows, grid.columns});
      passes.back().tiles += frames * frame;
      left -= frames;
    }
  }
  return passes;
}

/// Gives each pass the units of its tiles; no pass cuts one.
void share_out(const std::vector<nn::DropoutUnit>& units, std::vector<VisionInput>& passes) {
  auto unit = units.begin();
  for (auto& pass : passes) {
    for (int64_t tiles = pass.tiles.size(0); tiles > 0 && unit != units.end(); ++unit) {
      pass.units.push_back(*unit);
      tiles -= unit->share;
    }
  }
}

}  // namespace

std::vector<VisionInput> vision_passes(const VisionInput& vision, int64_t tiles_per_pass) {
  if (tiles_per_pass == 0 || vision.tiles.size(0) <= tiles_per_pass) return {vision};
  std::vector<VisionInput> passes;
  if (vision.grids.empty()) {
    for (const auto& tiles : vision.tiles.split(tiles_per_pass)) passes.push_back({tiles, {}});
  } else {
    int64_t first = 0;
    for (auto& pass : grid_passes(vision.grids, tiles_per_pass)) {
      passes.push_back({vision.tiles.narrow(0, first, pass.tiles), std::move(pass.grids)});
      first += pass.tiles;
    }
  }
  share_out(vision.units, passes);
  return passes;
}

}  // namespace vlmtrain::models
