#include "vlmtrain/image/volume.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "image/volume/affine.h"
#include "image/volume/nifti_header.h"
#include "image/volume/sampled_grid.h"
#include "image/volume/volume_stream.h"
#include "image/volume/voxel_values.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/option_keys.h"

namespace vlmtrain::image {

namespace {

/// Returns the copy from a resampled frame, in file order with the first axis contiguous, to a
/// volume of the result.
StridedCopy plan_result_copy(const SampledGrid& grid, const VolumeInfo& info, const VolumeSettings& settings) {
  const AxisDirections directions = parse_axis_codes(info.orientation);
  std::array<int64_t, 3> file_strides{};
  int64_t stride = 1;
  for (int file_axis = 0; file_axis < 3; ++file_axis) {
    file_strides[file_axis] = stride;
    stride *= grid.samples[std::ranges::find(directions.file_axes, file_axis) - directions.file_axes.begin()].size();
  }
  StridedCopy result{.shape = grid.cropped_size,
                     .source_stride = {},
                     .target_stride = {settings.size[1] * settings.size[2], settings.size[2], 1}};
  for (int axis = 0; axis < 3; ++axis) result.source_stride[axis] = file_strides[directions.file_axes[axis]];
  return result;
}

/// Returns the offset in values of the element at index `begin`.
int64_t compute_offset(const std::array<int64_t, 3>& begin, const std::array<int64_t, 3>& stride) {
  return begin[0] * stride[0] + begin[1] * stride[1] + begin[2] * stride[2];
}

/// Throws UserError (kBadData) for oblique axes if a spacing is set. MONAI's Spacing resamples such
/// a scan to orthogonal axes; this reader keeps the axes, so that distances would be wrong.
void check_is_orthogonal(const NiftiHeader& header, const VolumeSettings& settings, const std::string& name) {
  // Far above the roundings of headers (1e-5 voxels), and too small to be visible.
  constexpr double kMaxShearInVoxels = 0.1;
  if (!settings.spacing) return;
  const double shear_in_voxels = compute_shear_in_voxels(header.affine, header.size);
  if (shear_in_voxels <= kMaxShearInVoxels) return;
  throw data_error(
      "{}: the scan's axes are not orthogonal (off by {:.1f} voxels); resample it with "
      "nibabel.processing.resample_to_output, or set {}=auto",
      name, shear_in_voxels, keys::data::kVolumeSpacing);
}

/// Throws UserError (kBadData) if the largest magnitude does not fit in fp16.
void check_fits_float16(float max_magnitude, const std::string& name) {
  if (max_magnitude <= static_cast<float>(std::numeric_limits<c10::Half>::max())) return;
  throw data_error("{}: values of up to {} do not fit in float16; set {}=float32, or normalize the scan", name,
                   max_magnitude, keys::data::kVolumeDtype);
}

/// A reader that resamples and normalizes the frames of one scan. Reads the file once, forward:
/// call either read_mean_frame() or read_frames(), once. The settings must outlive the object.
class VolumeReader {
 public:
  VolumeReader(const io::MediaRef& scan, const VolumeSettings& settings)
      : settings_(settings),
        stream_(open_volume_stream(scan)),
        header_(read_nifti_header(*stream_)),
        info_(make_volume_info(header_)),
        sampled_grid_(make_sampled_grid(info_, header_.affine, settings, name())),
        axis_samples_(order_samples_by_file_axis(sampled_grid_, info_)),
        frame_sampler_(header_, axis_samples_),
        result_copy_(plan_result_copy(sampled_grid_, info_, settings)) {
    check_is_orthogonal(header_, settings, name());
  }

  const std::string& name() const { return stream_->name(); }
  const VolumeInfo& info() const { return info_; }

  /// Writes the mean of all frames to `out` [1, right, anterior, superior].
  void read_mean_frame(const at::Tensor& out) {
    std::vector<double> sums(sampled_grid_.num_values());
    for (int64_t frame = 0; frame < info_.num_frames; ++frame) {
      frame_sampler_.read(*stream_, [&](int64_t index, const float* plane, int64_t size) {
        double* const sum = sums.data() + index * size;
        for (int64_t i = 0; i < size; ++i) sum[i] += plane[i];
      });
    }
    stream_->verify_checksum();
    values_.resize(sums.size());
    const auto num_frames = static_cast<double>(info_.num_frames);
    std::ranges::transform(sums, values_.begin(),
                           [num_frames](double sum) { return static_cast<float>(sum / num_frames); });
    write_normalized_values(out);
  }

  /// Writes the frames at these ascending indices to `out` [frames, 1, right, anterior, superior].
  void read_frames(const std::vector<int64_t>& frames, const at::Tensor& out) {
    values_.resize(sampled_grid_.num_values());
    int64_t next_frame_index = 0;
    for (size_t i = 0; i < frames.size(); ++i) {
      stream_->skip(static_cast<uint64_t>((frames[i] - next_frame_index) * header_.frame_bytes()));
      frame_sampler_.read(*stream_, [&](int64_t index, const float* plane, int64_t size) {
        std::copy_n(plane, size, values_.data() + index * size);
      });
      next_frame_index = frames[i] + 1;
      if (next_frame_index == info_.num_frames) stream_->verify_checksum();
      write_normalized_values(out[static_cast<int64_t>(i)]);
    }
  }

 private:
  /// Normalizes values_ and writes them to `out`, one volume of the result.
  void write_normalized_values(const at::Tensor& out) {
    const IntensityTransform transform = make_intensity_transform(values_, settings_, name());
    const float* const source = values_.data() + compute_offset(sampled_grid_.crop_begin, result_copy_.source_stride);
    const int64_t result_offset = compute_offset(sampled_grid_.pad_before, result_copy_.target_stride);
    if (settings_.dtype == at::kFloat) {
      copy_strided(result_copy_, source, out.data_ptr<float>() + result_offset,
                   [&](float value) { return transform.apply(value); });
      return;
    }
    float max_magnitude = 0;
    copy_strided(result_copy_, source, out.data_ptr<at::Half>() + result_offset, [&](float value) {
      const float transformed = transform.apply(value);
      max_magnitude = std::max(max_magnitude, std::abs(transformed));
      return static_cast<at::Half>(transformed);
    });
    check_fits_float16(max_magnitude, name());
  }

  const VolumeSettings& settings_;
  std::unique_ptr<VolumeStream> stream_;
  NiftiHeader header_;
  VolumeInfo info_;
  SampledGrid sampled_grid_;
  std::array<AxisSamples, 3> axis_samples_;
  FrameSampler frame_sampler_;
  StridedCopy result_copy_;
  std::vector<float> values_;  // a resampled frame, in file order with the first axis contiguous
};

/// Throws InternalError for invalid settings. The configuration has validated the user's.
void check_volume_settings(const VolumeSettings& settings) {
  const auto is_positive = [](auto value) { return value > 0; };
  const auto& [lower, upper] = settings.percentiles;
  VLMTRAIN_CHECK(settings.dtype == at::kFloat || settings.dtype == at::kHalf, "a volume must be fp32 or fp16");
  VLMTRAIN_CHECK(std::ranges::all_of(settings.size, is_positive) && settings.max_frames > 0,
                 "the volume's size and max_frames must be positive");
  VLMTRAIN_CHECK(!settings.spacing || std::ranges::all_of(*settings.spacing, is_positive),
                 "the spacing must be positive");
  VLMTRAIN_CHECK(0 <= lower && lower < upper && upper <= 100, "percentiles must ascend from 0 to 100");
  VLMTRAIN_CHECK(settings.window[0] < settings.window[1], "the values of a window must ascend");
}

/// Implements count_volumes(). `name` identifies the scan in the message.
int64_t count_file_volumes(const VolumeInfo& info, const VolumeSettings& settings, const std::string& name) {
  if (info.num_frames == 1 || settings.time_series_mode == TimeSeriesMode::kMean) return 1;
  if (settings.time_series_mode == TimeSeriesMode::kSampledFrames)
    return std::min(info.num_frames, settings.max_frames);
  throw data_error(
      "{}: a series of {} volumes (functional or diffusion MRI), but one is expected; set {}=mean or frames, or "
      "save the volume you need as a separate file",
      name, info.num_frames, keys::data::kVolumeSeries);
}

}  // namespace

VolumeInfo read_volume_info(const io::MediaRef& scan) {
  const auto stream = open_volume_stream(scan);
  return make_volume_info(read_nifti_header(*stream));
}

int64_t count_volumes(const VolumeInfo& info, const VolumeSettings& settings) {
  return count_file_volumes(info, settings, "the scan");
}

int64_t estimate_volume_reading_memory(const VolumeInfo& info, const VolumeSettings& settings) {
  // Covers the stream's window (32 KiB) and buffers, a block of rows, and tables.
  constexpr double kReaderOverheadBytes = 1 << 20;
  const std::array<double, 3> sampled_sizes = compute_sampled_sizes(compute_ras_geometry(info), settings);
  double num_values = 1;
  double num_cropped_values = 1;
  double longest_axis_size = 0;
  for (int axis = 0; axis < 3; ++axis) {
    num_cropped_values *= std::min(sampled_sizes[axis], static_cast<double>(settings.size[axis]));
    num_values *= sampled_sizes[axis];
    longest_axis_size = std::max(longest_axis_size, sampled_sizes[axis]);
  }
  num_values = std::min(needs_full_volume(settings.normalization) ? num_values : num_cropped_values,
                        static_cast<double>(kMaxSampledValues));
  // For each value: fp32, a copy that compute_percentiles() sorts, and the sum of a mean in fp64.
  // Also three planes of fp32, and a row of the scan as stored (up to 8 bytes) and in fp32 (4).
  const bool averages_frames = settings.time_series_mode == TimeSeriesMode::kMean && info.num_frames > 1;
  const double bytes_per_value =
      4 + (settings.normalization == VolumeNormalization::kPercentile ? 4 : 0) + (averages_frames ? 8 : 0);
  const double plane_bytes = std::min(3 * 4 * longest_axis_size * longest_axis_size, 3 * 4 * num_values);
  const double row_bytes = 12.0 * static_cast<double>(std::ranges::max(info.size));
  return static_cast<int64_t>(kReaderOverheadBytes + num_values * bytes_per_value + plane_bytes + row_bytes);
}

at::Tensor read_volume(const io::MediaRef& scan, const VolumeSettings& settings) {
  check_volume_settings(settings);
  VolumeReader reader(scan, settings);
  const int64_t num_volumes = count_file_volumes(reader.info(), settings, reader.name());
  at::Tensor result = at::zeros({num_volumes, 1, settings.size[0], settings.size[1], settings.size[2]}, settings.dtype);
  if (reader.info().num_frames > 1 && settings.time_series_mode == TimeSeriesMode::kMean) {
    reader.read_mean_frame(result[0]);
  } else {
    reader.read_frames(make_evenly_spaced_indices(reader.info().num_frames, num_volumes), result);
  }
  return result;
}

}  // namespace vlmtrain::image
