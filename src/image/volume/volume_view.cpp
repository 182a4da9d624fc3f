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
double get_quantile(const at::Tensor& sorted, double share) {
  const auto index = static_cast<int64_t>(std::llround(share * static_cast<double>(sorted.numel() - 1)));
  return sorted[index].item<double>();
}

/// Which of a subject's axes a letter of VolumeInfo::orientation is along.
size_t get_ras_axis(char code) {
  return code == 'L' || code == 'R' ? 0 : code == 'P' || code == 'A' ? 1 : 2;
}

}  // namespace

at::Tensor render_orthogonal_slices(const at::Tensor& volume) {
  VLMTRAIN_CHECK(volume.dim() == 4 && volume.size(0) == 1 && volume.numel() > 0, "a volume of {} dimensions",
                 volume.dim());
  const at::Tensor voxels = volume[0].to(at::kFloat);
  const auto select_middle = [&](int64_t axis) { return voxels.select(axis, voxels.size(axis) / 2); };
  // Of each plane the axis across becomes columns and the axis up becomes rows, both mirrored: the subject's right is
  // on the left, and its front, or its top, above.
  const std::vector<at::Tensor> planes{select_middle(2).t().flip({0, 1}), select_middle(1).t().flip({0, 1}),
                                       select_middle(0).t().flip({0, 1})};
  int64_t height = 0;
  std::vector<at::Tensor> values;
  for (const at::Tensor& plane : planes) {
    height = std::max(height, plane.size(0));
    values.push_back(plane.flatten());
  }
  const at::Tensor sorted = std::get<0>(at::cat(values).sort());
  const double black = get_quantile(sorted, 0.01), white = std::max(get_quantile(sorted, 0.99), black + 1e-12);
  std::vector<at::Tensor> columns;
  for (const at::Tensor& plane : planes) {
    at::Tensor padded = at::full({height, plane.size(1)}, black, plane.options());
    padded.narrow(0, (height - plane.size(0)) / 2, plane.size(0)).copy_(plane);
    columns.push_back(padded);
  }
  const at::Tensor gray = ((at::cat(columns, 1) - black) / (white - black)).clamp(0, 1).mul(255).round().to(at::kByte);
  return gray.unsqueeze(0).expand({3, -1, -1}).contiguous();
}

at::Tensor render_scan_slices(const io::MediaRef& scan, int64_t longest) {
  const VolumeInfo info = read_volume_info(scan);
  const auto get_extent = [&info](size_t axis) { return static_cast<double>(info.size[axis]) * info.spacing[axis]; };
  const double longest_extent = std::max({get_extent(0), get_extent(1), get_extent(2)});
  const double pixel_mm =
      std::max(longest_extent / static_cast<double>(longest), *std::ranges::min_element(info.spacing));
  VolumeSettings settings;
  settings.normalization = VolumeNormalization::kNone;
  settings.series = SeriesUse::kMean;
  for (size_t axis = 0; axis < 3; ++axis) {
    settings.size[get_ras_axis(info.orientation[axis])] =
        std::max<int64_t>(1, std::llround(get_extent(axis) / pixel_mm));
  }
  return render_orthogonal_slices(read_volume(scan, settings)[0]);
}

}  // namespace vlmtrain::image
