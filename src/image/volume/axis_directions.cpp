#include "image/volume/axis_directions.h"

#include <nifti2_io.h>

#include <algorithm>
#include <cmath>
#include <string_view>

namespace vlmtrain::image {
namespace {

constexpr std::string_view kPositiveCodes = "RAS", kNegativeCodes = "LPI";

/// The rotation, or rotation with a reflection, that is next to the affine with columns of length 1.
nifti_dmat33 find_nearest_rotation(const AffineMatrix& affine) {
  const std::array<double, 3> spacing = compute_spacing(affine);
  nifti_dmat33 directions;
  for (int row = 0; row < 3; ++row) {
    for (int column = 0; column < 3; ++column) directions.m[row][column] = affine[row][column] / spacing[column];
  }
  return nifti_dmat33_polar(directions);
}

}  // namespace

AxisDirections compute_axis_directions(const AffineMatrix& affine) {
  nifti_dmat33 rotation = find_nearest_rotation(affine);
  const auto compute_strength = [rotation](int column) {
    double max_square = 0;
    for (const auto& row : rotation.m) max_square = std::max(max_square, row[column] * row[column]);
    return max_square;
  };
  std::array<int, 3> order{0, 1, 2};
  std::ranges::stable_sort(order, std::greater<>{}, compute_strength);
  AxisDirections result{};
  for (const int column : order) {
    int strongest_row = 0;
    for (int row = 1; row < 3; ++row) {
      if (std::abs(rotation.m[row][column]) > std::abs(rotation.m[strongest_row][column])) strongest_row = row;
    }
    result.file_axis[strongest_row] = column;
    result.is_flipped[strongest_row] = rotation.m[strongest_row][column] < 0;
    std::ranges::fill(rotation.m[strongest_row], 0.0);
  }
  return result;
}

std::string to_axis_codes(const AxisDirections& directions) {
  std::string result(3, ' ');
  for (int axis = 0; axis < 3; ++axis) {
    result[directions.file_axis[axis]] = (directions.is_flipped[axis] ? kNegativeCodes : kPositiveCodes)[axis];
  }
  return result;
}

AxisDirections parse_axis_codes(const std::string& codes) {
  AxisDirections result{};
  for (int axis = 0; axis < 3; ++axis) {
    const size_t positive_index = codes.find(kPositiveCodes[axis]);
    result.is_flipped[axis] = positive_index == std::string::npos;
    const size_t index = result.is_flipped[axis] ? codes.find(kNegativeCodes[axis]) : positive_index;
    result.file_axis[axis] = static_cast<int>(index);
  }
  return result;
}

}  // namespace vlmtrain::image
