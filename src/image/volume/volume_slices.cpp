#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "image/volume/affine.h"
#include "image/volume/nifti_header.h"
#include "image/volume/sampled_grid.h"
#include "image/volume/volume_stream.h"
#include "image/volume/voxel_values.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/image/volume.h"

namespace vlmtrain::image {

namespace {

/// The axes of slices, as indices 0 to 2 of right, anterior and superior: across the slices, from
/// row to row, and from column to column of an image.
struct PlaneAxes {
  int slice_axis;
  int row_axis;
  int column_axis;
};

PlaneAxes get_plane_axes(SlicePlane plane) {
  constexpr int kRightAxis = 0, kAnteriorAxis = 1, kSuperiorAxis = 2;
  switch (plane) {
    case SlicePlane::kAxial:
      return {kSuperiorAxis, kAnteriorAxis, kRightAxis};
    case SlicePlane::kCoronal:
      return {kAnteriorAxis, kSuperiorAxis, kRightAxis};
    case SlicePlane::kSagittal:
      break;
  }
  return {kRightAxis, kSuperiorAxis, kAnteriorAxis};
}

/// Returns the samples along right, anterior and superior. Rows and columns start at the ends of
/// their axes, so that superior and anterior are up, and right is on the left.
SampledGrid make_slice_grid(const VolumeInfo& info, const SliceSettings& settings) {
  const RasGeometry geometry = compute_ras_geometry(info);
  const auto [slice_axis, row_axis, column_axis] = get_plane_axes(settings.plane);
  const auto [height, width] = compute_slice_size(info, settings);
  SampledGrid grid;
  grid.samples[slice_axis] = make_evenly_spaced_samples(geometry.size[slice_axis], count_slices(info, settings));
  grid.samples[row_axis] = reverse_samples(make_resize_samples(geometry.size[row_axis], height));
  grid.samples[column_axis] = reverse_samples(make_resize_samples(geometry.size[column_axis], width));
  return grid;
}

/// Returns the copy from file order, with the first axis contiguous, to [slices, rows, columns].
StridedCopy plan_slice_copy(const SampledGrid& grid, const VolumeInfo& info, SlicePlane plane) {
  const AxisDirections directions = parse_axis_codes(info.orientation);
  std::array<int64_t, 3> axis_strides{};
  int64_t stride = 1;
  for (int file_axis = 0; file_axis < 3; ++file_axis) {
    const auto ras_axis = std::ranges::find(directions.file_axes, file_axis) - directions.file_axes.begin();
    axis_strides[ras_axis] = stride;
    stride *= grid.samples[ras_axis].size();
  }
  const auto [slice_axis, row_axis, column_axis] = get_plane_axes(plane);
  const int64_t height = grid.samples[row_axis].size(), width = grid.samples[column_axis].size();
  return {.shape = {grid.samples[slice_axis].size(), height, width},
          .source_stride = {axis_strides[slice_axis], axis_strides[row_axis], axis_strides[column_axis]},
          .target_stride = {height * width, width, 1}};
}

/// Returns the byte of a value; `window` maps to 0 to 1.
uint8_t to_gray_byte(float value, const IntensityTransform& window) {
  return static_cast<uint8_t>(std::lround(255 * window.apply(value)));
}

/// Returns a transform to 0 to 1 for each channel, or one for all channels. `values`: of all
/// slices.
std::vector<IntensityTransform> make_intensity_windows(const std::vector<float>& values, const SliceSettings& settings,
                                                       const std::string& name) {
  VolumeSettings volume_settings;
  volume_settings.normalization = VolumeNormalization::kWindow;
  std::vector<IntensityTransform> result;
  for (const auto& window : settings.windows) {
    VLMTRAIN_CHECK(window[0] < window[1], "the values of a window must ascend");
    volume_settings.window = window;
    result.push_back(make_intensity_transform(values, volume_settings, name));
  }
  if (!result.empty()) return result;
  volume_settings.normalization = VolumeNormalization::kPercentile;
  return {make_intensity_transform(values, volume_settings, name)};
}

/// Reads and resamples the slices, in file order with the first axis contiguous. Throws UserError
/// (kBadData) for a series or too many pixels.
std::vector<float> read_slice_values(VolumeStream& stream, const NiftiHeader& header, const SampledGrid& grid,
                                     const VolumeInfo& info) {
  if (info.num_frames > 1) {
    throw data_error(
        "{}: slices of a series of {} volumes (functional or diffusion MRI) are not supported; save the volume you "
        "need as a separate file",
        stream.name(), info.num_frames);
  }
  if (grid.num_values() > kMaxSampledValues) {
    throw data_error("{}: {} slices of the scan have {} pixels, more than {}; lower {}", stream.name(),
                     grid.samples[0].size(), grid.num_values(), kMaxSampledValues, keys::data::kVolumeSlices);
  }
  const std::array<AxisSamples, 3> samples = order_samples_by_file_axis(grid, info);
  FrameSampler frame_sampler(header, samples);
  std::vector<float> values(grid.num_values());
  frame_sampler.read(stream, [&](int64_t index, const float* plane, int64_t size) {
    std::copy_n(plane, size, values.data() + index * size);
  });
  stream.verify_checksum();
  return values;
}

/// Returns the quantile `fraction`, 0 to 1, of sorted values: the value at the nearest rank.
double compute_quantile(const at::Tensor& sorted_values, double fraction) {
  const auto index = static_cast<int64_t>(std::llround(fraction * static_cast<double>(sorted_values.numel() - 1)));
  return sorted_values[index].item<double>();
}

/// Returns the axis, 0 to 2 for right, anterior and superior, of a letter of
/// VolumeInfo::orientation.
size_t get_ras_axis(char code) {
  return code == 'L' || code == 'R' ? 0 : code == 'P' || code == 'A' ? 1 : 2;
}

}  // namespace

int64_t count_slices(const VolumeInfo& info, const SliceSettings& settings) {
  return std::min(settings.max_slices, compute_ras_geometry(info).size[get_plane_axes(settings.plane).slice_axis]);
}

ImageSize compute_slice_size(const VolumeInfo& info, const SliceSettings& settings) {
  const RasGeometry geometry = compute_ras_geometry(info);
  const auto [slice_axis, row_axis, column_axis] = get_plane_axes(settings.plane);
  const double height = static_cast<double>(geometry.size[row_axis]) * geometry.spacing[row_axis];
  const double width = static_cast<double>(geometry.size[column_axis]) * geometry.spacing[column_axis];
  const double mm_per_pixel = std::max(std::min(geometry.spacing[row_axis], geometry.spacing[column_axis]),
                                       std::max(height, width) / static_cast<double>(kMaxSlicePixelsPerAxis));
  const auto convert_mm_to_pixels = [mm_per_pixel](double length_mm) {
    return std::max<int64_t>(std::llround(length_mm / mm_per_pixel), 1);
  };
  return {convert_mm_to_pixels(height), convert_mm_to_pixels(width)};
}

int64_t estimate_slice_reading_memory(const VolumeInfo& info, const SliceSettings& settings) {
  constexpr int64_t kReaderOverheadBytes = int64_t{1} << 20;  // the stream's window and buffers, and tables
  const auto [height, width] = compute_slice_size(info, settings);
  const int64_t longest_axis_size = std::max({height, width, count_slices(info, settings)});
  const int64_t values = std::min(count_slices(info, settings) * height * width, kMaxSampledValues);
  // As in estimate_volume_reading_memory(): values in fp32, with a copy that percentiles sort;
  // three planes of fp32; a row as stored and in fp32.
  const int64_t bytes_per_value = settings.windows.empty() ? 8 : 4;
  return kReaderOverheadBytes + values * bytes_per_value +
         std::min(12 * longest_axis_size * longest_axis_size, 12 * values) + 12 * std::ranges::max(info.size);
}

std::vector<at::Tensor> read_slices(const io::MediaRef& scan, const SliceSettings& settings) {
  VLMTRAIN_CHECK(settings.max_slices > 0, "the number of slices must be positive");
  VLMTRAIN_CHECK(settings.windows.size() <= 1 || settings.windows.size() == 3,
                 "give one window for all channels, or one per channel");
  const auto stream = open_volume_stream(scan);
  const NiftiHeader header = read_nifti_header(*stream);
  const VolumeInfo info = make_volume_info(header);
  const SampledGrid grid = make_slice_grid(info, settings);
  const std::vector<float> values = read_slice_values(*stream, header, grid, info);
  const std::vector<IntensityTransform> windows = make_intensity_windows(values, settings, stream->name());
  StridedCopy slice_copy = plan_slice_copy(grid, info, settings.plane);
  const auto [slices, height, width] = slice_copy.shape;
  slice_copy.shape[0] = 1;  // one slice at a time, each to its own tensor
  std::vector<at::Tensor> result;
  for (int64_t slice = 0; slice < slices; ++slice) {
    auto* const planes = result.emplace_back(at::empty({3, height, width}, at::kByte)).mutable_data_ptr<uint8_t>();
    for (size_t channel = 0; channel < 3; ++channel) {
      uint8_t* const plane = planes + static_cast<int64_t>(channel) * height * width;
      if (channel >= windows.size()) {
        std::copy_n(planes, height * width, plane);
        continue;
      }
      copy_strided(slice_copy, values.data() + slice * slice_copy.source_stride[0], plane,
                   [&](float value) { return to_gray_byte(value, windows[channel]); });
    }
  }
  return result;
}

at::Tensor render_orthogonal_slices(const at::Tensor& volume) {
  VLMTRAIN_CHECK(volume.dim() == 4 && volume.size(0) == 1 && volume.numel() > 0,
                 "the volume to render must be [1, right, anterior, superior] and not empty, but has {} "
                 "dimensions",
                 volume.dim());
  const at::Tensor voxels = volume[0].to(at::kFloat);
  const auto select_middle_slice = [&](int64_t axis) { return voxels.select(axis, voxels.size(axis) / 2); };
  // Rows and columns are mirrored: the subject's right is on the left, and anterior or superior is
  // up.
  const std::vector<at::Tensor> planes{select_middle_slice(2).t().flip({0, 1}), select_middle_slice(1).t().flip({0, 1}),
                                       select_middle_slice(0).t().flip({0, 1})};
  int64_t height = 0;
  std::vector<at::Tensor> values;
  for (const at::Tensor& plane : planes) {
    height = std::max(height, plane.size(0));
    values.push_back(plane.flatten());
  }
  const at::Tensor sorted_values = std::get<0>(at::cat(values).sort());
  // The minimum width of the window avoids a division by 0 if all values are equal.
  const double black_value = compute_quantile(sorted_values, 0.01),
               white_value = std::max(compute_quantile(sorted_values, 0.99), black_value + 1e-12);
  std::vector<at::Tensor> columns;
  for (const at::Tensor& plane : planes) {
    at::Tensor padded_plane = at::full({height, plane.size(1)}, black_value, plane.options());
    padded_plane.narrow(0, (height - plane.size(0)) / 2, plane.size(0)).copy_(plane);
    columns.push_back(padded_plane);
  }
  const at::Tensor gray_image =
      ((at::cat(columns, 1) - black_value) / (white_value - black_value)).clamp(0, 1).mul(255).round().to(at::kByte);
  return gray_image.unsqueeze(0).expand({3, -1, -1}).contiguous();
}

at::Tensor render_scan_slices(const io::MediaRef& scan, int64_t max_pixels) {
  const VolumeInfo info = read_volume_info(scan);
  const auto compute_extent_mm = [&info](size_t axis) {
    return static_cast<double>(info.size[axis]) * info.spacing[axis];
  };
  const double longest_extent_mm = std::max({compute_extent_mm(0), compute_extent_mm(1), compute_extent_mm(2)});
  const double mm_per_pixel =
      std::max(longest_extent_mm / static_cast<double>(max_pixels), *std::ranges::min_element(info.spacing));
  VolumeSettings settings;
  settings.normalization = VolumeNormalization::kNone;
  settings.time_series_mode = TimeSeriesMode::kMean;
  for (size_t axis = 0; axis < 3; ++axis) {
    settings.size[get_ras_axis(info.orientation[axis])] =
        std::max<int64_t>(1, std::llround(compute_extent_mm(axis) / mm_per_pixel));
  }
  return render_orthogonal_slices(read_volume(scan, settings)[0]);
}

}  // namespace vlmtrain::image
