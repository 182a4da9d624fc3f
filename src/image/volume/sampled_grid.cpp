#include "image/volume/sampled_grid.h"

#include <algorithm>
#include <cmath>

#include "image/volume/axis_directions.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::image {
namespace {

/// MONAI's AFFINE_TOL: a spacing so near to the wanted one is left alone.
constexpr double kSpacingTolerance = 1e-3;

double used_spacing(double stored, double wanted) {
  return std::abs(stored - wanted) <= kSpacingTolerance ? stored : wanted;
}

/// MONAI's rule too: where nothing would move, nothing is touched.
bool changes_something(const TurnedShape& shape, const std::array<double, 3>& sizes, const Axes<double>& spacing) {
  for (int axis = 0; axis < 3; ++axis) {
    const double step = used_spacing(shape.spacing[axis], spacing[axis]) / shape.spacing[axis];
    if (std::abs(step - 1) > kSpacingTolerance || sizes[axis] != static_cast<double>(shape.size[axis])) return true;
  }
  return false;
}

void check_number(const std::array<double, 3>& sizes, const TurnedShape& shape, const std::string& name) {
  if (sizes[0] * sizes[1] * sizes[2] <= static_cast<double>(kMostSampledValues)) return;
  throw data_error(
      "{}: at the wanted size or spacing the scan has {} × {} × {} voxels, more than {}; take a larger spacing, or "
      "check "
      "the scan's own ({}, {}, {} mm)",
      name, sizes[0], sizes[1], sizes[2], kMostSampledValues, shape.spacing[0], shape.spacing[1], shape.spacing[2]);
}

std::array<AxisSamples, 3> samples_of_whole(const TurnedShape& shape, const Axes<int64_t>& size) {
  std::array<AxisSamples, 3> result;
  for (int axis = 0; axis < 3; ++axis) result[axis] = samples_that_fit(shape.size[axis], size[axis]);
  return result;
}

std::array<AxisSamples, 3> samples_by_spacing(const VolumeInfo& info, const AffineMatrix& affine,
                                              const std::array<double, 3>& sizes, const Axes<double>& wanted) {
  const AxisDirections directions = directions_of_letters(info.orientation);
  const TurnedShape shape = turned_shape(info);
  Axes<double> spacing{};
  for (int axis = 0; axis < 3; ++axis) spacing[axis] = used_spacing(shape.spacing[axis], wanted[axis]);
  const bool moves = changes_something(shape, sizes, wanted);
  const bool from_corner =
      has_corner(turned_affine(affine, directions.file_axis, directions.backwards), shape.size, spacing);
  std::array<AxisSamples, 3> result;
  for (int axis = 0; axis < 3; ++axis) {
    const double step = moves ? spacing[axis] / shape.spacing[axis] : 1;
    const double begin = from_corner || !moves ? 0 : (static_cast<double>(shape.size[axis]) - step * sizes[axis]) / 2;
    result[axis] = samples_with_step(shape.size[axis], static_cast<int64_t>(sizes[axis]), begin, step);
  }
  return result;
}

}  // namespace

TurnedShape turned_shape(const VolumeInfo& info) {
  const AxisDirections directions = directions_of_letters(info.orientation);
  TurnedShape result{};
  for (int axis = 0; axis < 3; ++axis) {
    result.size[axis] = info.size[directions.file_axis[axis]];
    result.spacing[axis] = info.spacing[directions.file_axis[axis]];
  }
  return result;
}

bool looks_at_all(VolumeNormalization normalization) {
  return normalization != VolumeNormalization::kWindow && normalization != VolumeNormalization::kNone;
}

std::array<double, 3> sampled_sizes(const TurnedShape& shape, const VolumeSettings& settings) {
  std::array<double, 3> result{};
  for (int axis = 0; axis < 3; ++axis) {
    if (!settings.spacing) {
      result[axis] = static_cast<double>(settings.size[axis]);
      continue;
    }
    const double spacing = used_spacing(shape.spacing[axis], (*settings.spacing)[axis]);
    // To the even number from the middle between two, as numpy rounds.
    result[axis] = std::nearbyint(static_cast<double>(shape.size[axis] - 1) * shape.spacing[axis] / spacing + 1);
  }
  return result;
}

SampledGrid sampled_grid(const VolumeInfo& info, const AffineMatrix& affine, const VolumeSettings& settings,
                         const std::string& name) {
  const TurnedShape shape = turned_shape(info);
  const std::array<double, 3> sizes = sampled_sizes(shape, settings);
  check_number(sizes, shape, name);
  SampledGrid result;
  result.samples = settings.spacing ? samples_by_spacing(info, affine, sizes, *settings.spacing)
                                    : samples_of_whole(shape, settings.size);
  for (int axis = 0; axis < 3; ++axis) {
    // MONAI's ResizeWithPadOrCrop: the odd voxel is cropped in front and padded behind.
    const int64_t outputs = result.samples[axis].size();
    const int64_t wanted = settings.size[axis];
    result.crop_begin[axis] = outputs > wanted ? outputs / 2 - wanted / 2 : 0;
    result.kept[axis] = std::min(outputs, wanted);
    result.pad_before[axis] = (wanted - result.kept[axis]) / 2;
    if (looks_at_all(settings.normalization)) continue;
    result.samples[axis] = part_of(result.samples[axis], result.crop_begin[axis], result.kept[axis]);
    result.crop_begin[axis] = 0;
  }
  return result;
}

std::array<AxisSamples, 3> samples_by_file_axis(const SampledGrid& grid, const VolumeInfo& info) {
  const AxisDirections directions = directions_of_letters(info.orientation);
  std::array<AxisSamples, 3> result;
  for (int axis = 0; axis < 3; ++axis) {
    const int file_axis = directions.file_axis[axis];
    result[file_axis] =
        directions.backwards[axis] ? of_reversed_axis(grid.samples[axis], info.size[file_axis]) : grid.samples[axis];
  }
  return result;
}

}  // namespace vlmtrain::image
