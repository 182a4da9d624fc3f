#include "models/qwen3_vl/position_taps.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace vlmtrain::models::qwen3_vl {

namespace {

/// Where a patch reads one axis of the table.
struct AxisInterpolation {
  std::array<int64_t, 2> indices;
  std::array<float, 2> weights;
};

std::vector<AxisInterpolation> interpolate_axis(int64_t patches, int64_t side) {
  std::vector<AxisInterpolation> interpolation;
  interpolation.reserve(static_cast<size_t>(patches));
  for (int64_t i = 0; i < patches; ++i) {
    const float position = static_cast<float>(i * (side - 1)) / static_cast<float>(std::max<int64_t>(patches - 1, 1));
    const float lower = std::floor(position);
    const auto index = static_cast<int64_t>(lower);
    const float fraction = position - lower;
    interpolation.push_back({{index, std::min(index + 1, side - 1)}, {1 - fraction, 1 - std::abs(fraction - 1)}});
  }
  return interpolation;
}

}  // namespace

PositionInterpolation PositionInterpolation::make(std::span<const data::PatchGrid> grids, int64_t side, int64_t merge) {
  int64_t patches = 0;
  for (const auto& grid : grids) patches += grid.patches();
  PositionInterpolation interpolation{std::vector<int64_t>(static_cast<size_t>(kInterpolationPoints * patches)),
                                      std::vector<float>(static_cast<size_t>(kInterpolationPoints * patches))};
  int64_t patch = 0;
  const auto add = [&](const AxisInterpolation& row, const AxisInterpolation& column) {
    for (size_t point = 0; point < kInterpolationPoints; ++point) {
      const size_t y = point / 2, x = point % 2,
                   slot = point * static_cast<size_t>(patches) + static_cast<size_t>(patch);
      interpolation.indices[slot] = row.indices[y] * side + column.indices[x];
      interpolation.weights[slot] = row.weights[y] * column.weights[x];
    }
    ++patch;
  };
  for (const auto& grid : grids) {
    const auto rows = interpolate_axis(grid.rows, side), columns = interpolate_axis(grid.columns, side);
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
  return interpolation;
}

}  // namespace vlmtrain::models::qwen3_vl
