#include "vlmtrain/image/volume_slices.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "image/volume/axis_directions.h"
#include "image/volume/frame_sampler.h"
#include "image/volume/intensity.h"
#include "image/volume/nifti_header.h"
#include "image/volume/sampled_grid.h"
#include "image/volume/turned_copy.h"
#include "image/volume/volume_stream.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::image {
namespace {

/// Of right, front and top: which one the slices follow each other along, and which are a picture's rows and columns.
struct PlaneAxes {
  int across;
  int rows;
  int columns;
};

PlaneAxes axes_of(SlicePlane plane) {
  constexpr int kRight = 0, kFront = 1, kTop = 2;
  switch (plane) {
    case SlicePlane::kAxial:
      return {kTop, kFront, kRight};
    case SlicePlane::kCoronal:
      return {kFront, kTop, kRight};
    case SlicePlane::kSagittal:
      break;
  }
  return {kRight, kTop, kFront};
}

/// The samples of each of right, front and top. Rows and columns begin at the end of their axes, where top, front and
/// right are.
SampledGrid grid_of_slices(const VolumeInfo& info, const SliceSettings& settings) {
  const TurnedShape shape = turned_shape(info);
  const auto [across, rows, columns] = axes_of(settings.plane);
  const auto [height, width] = slice_size(info, settings);
  SampledGrid grid;
  grid.samples[across] = samples_of_voxels(shape.size[across], slices_of(info, settings));
  grid.samples[rows] = backwards(samples_that_fit(shape.size[rows], height));
  grid.samples[columns] = backwards(samples_that_fit(shape.size[columns], width));
  return grid;
}

/// From the file's order to [slices, rows, columns].
TurnedCopy copy_of_slices(const SampledGrid& grid, const VolumeInfo& info, SlicePlane plane) {
  const AxisDirections directions = directions_of_letters(info.orientation);
  std::array<int64_t, 3> stride_of_axis{};
  int64_t stride = 1;
  for (int file_axis = 0; file_axis < 3; ++file_axis) {
    const auto axis = std::ranges::find(directions.file_axis, file_axis) - directions.file_axis.begin();
    stride_of_axis[axis] = stride;
    stride *= grid.samples[axis].size();
  }
  const auto [across, rows, columns] = axes_of(plane);
  const int64_t height = grid.samples[rows].size(), width = grid.samples[columns].size();
  return {.count = {grid.samples[across].size(), height, width},
          .source_stride = {stride_of_axis[across], stride_of_axis[rows], stride_of_axis[columns]},
          .target_stride = {height * width, width, 1}};
}

uint8_t shade_of(float value, const IntensityChange& window) {
  return static_cast<uint8_t>(std::lround(255 * window.of(value)));
}

/// One for each channel, or one for all.
std::vector<IntensityChange> windows_of(const std::vector<float>& values, const SliceSettings& settings,
                                        const std::string& name) {
  VolumeSettings intensity;
  intensity.normalization = VolumeNormalization::kWindow;
  std::vector<IntensityChange> result;
  for (const auto& window : settings.windows) {
    VLMTRAIN_CHECK(window[0] < window[1], "a window's values ascend");
    intensity.window = window;
    result.push_back(intensity_change(values, intensity, name));
  }
  if (!result.empty()) return result;
  intensity.normalization = VolumeNormalization::kPercentile;
  return {intensity_change(values, intensity, name)};
}

std::vector<float> read_values(VolumeStream& stream, const NiftiHeader& header, const SampledGrid& grid,
                               const VolumeInfo& info) {
  if (info.frames > 1) {
    throw data_error(
        "{}: a series of {} volumes, such as functional or diffusion MRI, of which no slices are taken; save the "
        "wanted "
        "volume as a file of its own",
        stream.name(), info.frames);
  }
  if (grid.values() > kMostSampledValues) {
    throw data_error("{}: {} slices of the scan have {} pixels, more than {}; take fewer slices", stream.name(),
                     grid.samples[0].size(), grid.values(), kMostSampledValues);
  }
  const std::array<AxisSamples, 3> samples = samples_by_file_axis(grid, info);
  FrameSampler sampler(header, samples);
  std::vector<float> values(grid.values());
  sampler.read(stream, [&](int64_t index, const float* plane, int64_t size) {
    std::copy_n(plane, size, values.data() + index * size);
  });
  stream.finish();
  return values;
}

}  // namespace

int64_t slices_of(const VolumeInfo& info, const SliceSettings& settings) {
  return std::min(settings.count, turned_shape(info).size[axes_of(settings.plane).across]);
}

ImageSize slice_size(const VolumeInfo& info, const SliceSettings& settings) {
  const TurnedShape shape = turned_shape(info);
  const auto [across, rows, columns] = axes_of(settings.plane);
  const double height = static_cast<double>(shape.size[rows]) * shape.spacing[rows];
  const double width = static_cast<double>(shape.size[columns]) * shape.spacing[columns];
  const double pixel = std::max(std::min(shape.spacing[rows], shape.spacing[columns]),
                                std::max(height, width) / static_cast<double>(kMostSlicePixels));
  const auto pixels_of = [pixel](double mm) { return std::max<int64_t>(std::llround(mm / pixel), 1); };
  return {pixels_of(height), pixels_of(width)};
}

int64_t slice_reading_bytes(const VolumeInfo& info, const SliceSettings& settings) {
  constexpr int64_t kFixed = int64_t{1} << 20;
  const auto [height, width] = slice_size(info, settings);
  const int64_t longest = std::max({height, width, slices_of(info, settings)});
  const int64_t values = std::min(slices_of(info, settings) * height * width, kMostSampledValues);
  const int64_t a_value = settings.windows.empty() ? 8 : 4;
  return kFixed + values * a_value + std::min(12 * longest * longest, 12 * values) + 12 * std::ranges::max(info.size);
}

std::vector<at::Tensor> read_slices(const io::Medium& medium, const SliceSettings& settings) {
  VLMTRAIN_CHECK(settings.count > 0, "slices are wanted");
  VLMTRAIN_CHECK(settings.windows.size() <= 1 || settings.windows.size() == 3,
                 "a window is for all channels, or one each");
  const auto stream = open_volume_stream(medium);
  const NiftiHeader header = read_nifti_header(*stream);
  const VolumeInfo info = info_of(header);
  const SampledGrid grid = grid_of_slices(info, settings);
  const std::vector<float> values = read_values(*stream, header, grid, info);
  const std::vector<IntensityChange> windows = windows_of(values, settings, stream->name());
  TurnedCopy copy = copy_of_slices(grid, info, settings.plane);
  const auto [slices, height, width] = copy.count;
  copy.count[0] = 1;
  std::vector<at::Tensor> result;
  for (int64_t slice = 0; slice < slices; ++slice) {
    auto* const planes = result.emplace_back(at::empty({3, height, width}, at::kByte)).mutable_data_ptr<uint8_t>();
    for (size_t channel = 0; channel < 3; ++channel) {
      uint8_t* const plane = planes + static_cast<int64_t>(channel) * height * width;
      if (channel >= windows.size()) {
        std::copy_n(planes, height * width, plane);
        continue;
      }
      copy_turned(copy, values.data() + slice * copy.source_stride[0], plane,
                  [&](float value) { return shade_of(value, windows[channel]); });
    }
  }
  return result;
}

}  // namespace vlmtrain::image
