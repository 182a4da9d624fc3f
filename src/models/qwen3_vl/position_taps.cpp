#include "models/qwen3_vl/position_taps.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace vlmtrain::models::qwen3_vl {

namespace {

/// Where a patch reads one axis of the table.
struct AxisTap {
  std::array<int64_t, 2> entries;
  std::array<float, 2> weights;
};

std::vector<AxisTap> taps_of_axis(int64_t patches, int64_t side) {
  std::vector<AxisTap> taps;
  taps.reserve(static_cast<size_t>(patches));
  for (int64_t i = 0; i < patches; ++i) {
    const float place = static_cast<float>(i * (side - 1)) / static_cast<float>(std::max<int64_t>(patches - 1, 1));
    const float before = std::floor(place);
    const auto entry = static_cast<int64_t>(before);
    const float beyond = place - before;
    taps.push_back({{entry, std::min(entry + 1, side - 1)}, {1 - beyond, 1 - std::abs(beyond - 1)}});
  }
  return taps;
}

}  // namespace

PositionTaps PositionTaps::of(std::span<const data::PatchGrid> grids, int64_t side, int64_t merge) {
  int64_t patches = 0;
  for (const auto& grid : grids) patches += grid.patches();
  PositionTaps taps{std::vector<int64_t>(static_cast<size_t>(kTaps * patches)),
                    std::vector<float>(static_cast<size_t>(kTaps * patches))};
  int64_t patch = 0;
  const auto add = [&](const AxisTap& row, const AxisTap& column) {
    for (size_t tap = 0; tap < kTaps; ++tap) {
      const size_t y = tap / 2, x = tap % 2, place = tap * static_cast<size_t>(patches) + static_cast<size_t>(patch);
      taps.entries[place] = row.entries[y] * side + column.entries[x];
      taps.weights[place] = row.weights[y] * column.weights[x];
    }
    ++patch;
  };
  for (const auto& grid : grids) {
    const auto rows = taps_of_axis(grid.rows, side), columns = taps_of_axis(grid.columns, side);
    for (int64_t frame = 0; frame < grid.frames; ++frame) {
      for (int64_t top = 0; top < grid.rows; top += merge) {
        for (int64_t left = 0; left < grid.columns; left += merge) {
          for (int64_t i = 0; i < merge * merge; ++i) {
            add(rows[static_cast<size_t>(top + i / merge)], columns[static_cast<size_t>(left + i % merge)]);
          }
        }
      }
    }
  }
  return taps;
}

}  // namespace vlmtrain::models::qwen3_vl
