#include "image/volume/axis_directions.h"

#include <nifti2_io.h>

#include <algorithm>
#include <cmath>
#include <string_view>

namespace vlmtrain::image {
namespace {

constexpr std::string_view kForwards = "RAS", kBackwards = "LPI";

/// The rotation, or rotation with a reflection, that is next to the affine with columns of length 1.
nifti_dmat33 nearest_rotation(const AffineMatrix& affine) {
  const std::array<double, 3> spacing = spacing_of(affine);
  nifti_dmat33 directions;
  for (int row = 0; row < 3; ++row) {
    for (int column = 0; column < 3; ++column) directions.m[row][column] = affine[row][column] / spacing[column];
  }
  return nifti_dmat33_polar(directions);
}

}  // namespace

AxisDirections axis_directions(const AffineMatrix& affine) {
  nifti_dmat33 rotation = nearest_rotation(affine);
  const auto strength = [rotation](int column) {
    double most = 0;
    for (const auto& row : rotation.m) most = std::max(most, row[column] * row[column]);
    return most;
  };
  std::array<int, 3> order{0, 1, 2};
  std::ranges::stable_sort(order, std::greater<>{}, strength);
  AxisDirections result{};
  for (const int column : order) {
    int strongest = 0;
    for (int row = 1; row < 3; ++row) {
      if (std::abs(rotation.m[row][column]) > std::abs(rotation.m[strongest][column])) strongest = row;
    }
    result.file_axis[strongest] = column;
    result.backwards[strongest] = rotation.m[strongest][column] < 0;
    std::ranges::fill(rotation.m[strongest], 0.0);
  }
  return result;
}

std::string axis_letters(const AxisDirections& directions) {
  std::string result(3, ' ');
  for (int axis = 0; axis < 3; ++axis) {
    result[directions.file_axis[axis]] = (directions.backwards[axis] ? kBackwards : kForwards)[axis];
  }
  return result;
}

AxisDirections directions_of_letters(const std::string& letters) {
  AxisDirections result{};
  for (int axis = 0; axis < 3; ++axis) {
    const size_t forwards = letters.find(kForwards[axis]);
    result.backwards[axis] = forwards == std::string::npos;
    const size_t place = result.backwards[axis] ? letters.find(kBackwards[axis]) : forwards;
    result.file_axis[axis] = static_cast<int>(place);
  }
  return result;
}

}  // namespace vlmtrain::image
