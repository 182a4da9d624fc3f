#include "vlmtrain/image/volume_view.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "vlmtrain/base/error.h"
#include "vlmtrain/image/volume.h"

namespace vlmtrain::image {

namespace {

/// Value `share` of the way up the sorted values.
double value_at(const at::Tensor& sorted, double share) {
  const auto place = static_cast<int64_t>(std::llround(share * static_cast<double>(sorted.numel() - 1)));
  return sorted[place].item<double>();
}

/// Which of a subject's axes a letter of VolumeInfo::orientation is along.
size_t axis_of(char letter) {
  return letter == 'L' || letter == 'R' ? 0 : letter == 'P' || letter == 'A' ? 1 : 2;
}

}  // namespace

at::Tensor orthogonal_slices(const at::Tensor& volume) {
  VLMTRAIN_CHECK(volume.dim() == 4 && volume.size(0) == 1 && volume.numel() > 0, "a volume of {} dimensions",
                 volume.dim());
  const at::Tensor voxels = volume[0].to(at::kFloat);
  const auto middle = [&](int64_t axis) { return voxels.select(axis, voxels.size(axis) / 2); };
  // Of each plane the axis across becomes columns and the axis up becomes rows, both mirrored: the subject's right is
  // on the left, and its front, or its top, above.
  const std::vector<at::Tensor> planes{middle(2).t().flip({0, 1}), middle(1).t().flip({0, 1}),
                                       middle(0).t().flip({0, 1})};
  int64_t height = 0;
  std::vector<at::Tensor> values;
  for (const at::Tensor& plane : planes) {
    height = std::max(height, plane.size(0));
    values.push_back(plane.flatten());
  }
  const at::Tensor sorted = std::get<0>(at::cat(values).sort());
  const double black = value_at(sorted, 0.01), white = std::max(value_at(sorted, 0.99), black + 1e-12);
  std::vector<at::Tensor> columns;
  for (const at::Tensor& plane : planes) {
    at::Tensor padded = at::full({height, plane.size(1)}, black, plane.options());
    padded.narrow(0, (height - plane.size(0)) / 2, plane.size(0)).copy_(plane);
    columns.push_back(padded);
  }
  const at::Tensor grey = ((at::cat(columns, 1) - black) / (white - black)).clamp(0, 1).mul(255).round().to(at::kByte);
  return grey.unsqueeze(0).expand({3, -1, -1}).contiguous();
}

at::Tensor orthogonal_slices_of(const io::Medium& scan, int64_t longest) {
  const VolumeInfo info = read_volume_info(scan);
  const auto extent = [&info](size_t axis) { return static_cast<double>(info.size[axis]) * info.spacing[axis]; };
  const double most = std::max({extent(0), extent(1), extent(2)});
  const double pixel = std::max(most / static_cast<double>(longest), *std::ranges::min_element(info.spacing));
  VolumeSettings settings;
  settings.normalization = VolumeNormalization::kNone;
  settings.series = SeriesUse::kMean;
  for (size_t axis = 0; axis < 3; ++axis) {
    settings.size[axis_of(info.orientation[axis])] = std::max<int64_t>(1, std::llround(extent(axis) / pixel));
  }
  return orthogonal_slices(read_volume(scan, settings)[0]);
}

}  // namespace vlmtrain::image
