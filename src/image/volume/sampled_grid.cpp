#include "image/volume/sampled_grid.h"

#include <algorithm>
#include <cmath>

#include "image/pixel_layout.h"
#include "image/volume/affine.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/option_keys.h"

namespace vlmtrain::image {

namespace {

/// MONAI's AFFINE_TOL, in mm: a spacing this close to the requested one is not changed.
constexpr double kSpacingTolerance = 1e-3;

double snap_spacing(double original, double requested) {
  return std::abs(original - requested) <= kSpacingTolerance ? original : requested;
}

/// Returns whether resampling changes the scan. If not, MONAI skips it. `sizes`: the result of
/// compute_sampled_sizes(); `spacing`: as requested.
bool needs_resampling(const RasGeometry& geometry, const std::array<double, 3>& sizes, const PerAxis<double>& spacing) {
  for (int axis = 0; axis < 3; ++axis) {
    const double step = snap_spacing(geometry.spacing[axis], spacing[axis]) / geometry.spacing[axis];
    if (std::abs(step - 1) > kSpacingTolerance || sizes[axis] != static_cast<double>(geometry.size[axis])) return true;
  }
  return false;
}

void check_sampled_size(const std::array<double, 3>& sizes, const RasGeometry& geometry, const std::string& name) {
  if (sizes[0] * sizes[1] * sizes[2] <= static_cast<double>(kMaxSampledValues)) return;
  throw data_error(
      "{}: the resampled scan has {} × {} × {} voxels, more than {}; raise {} or lower {}, or check the scan's own "
      "spacing ({}, {}, {} mm)",
      name, sizes[0], sizes[1], sizes[2], kMaxSampledValues, keys::data::kVolumeSpacing, keys::data::kVolumeSize,
      geometry.spacing[0], geometry.spacing[1], geometry.spacing[2]);
}

/// Returns the samples of a resize of the whole field of view to `size`.
std::array<AxisSamples, 3> make_resize_samples_by_axis(const RasGeometry& geometry, const PerAxis<int64_t>& size) {
  std::array<AxisSamples, 3> result;
  for (int axis = 0; axis < 3; ++axis) result[axis] = make_resize_samples(geometry.size[axis], size[axis]);
  return result;
}

/// Returns the samples of a resampling to the requested spacing, as in MONAI's Spacing. `sizes`:
/// the result of compute_sampled_sizes().
std::array<AxisSamples, 3> make_spacing_samples_by_axis(const VolumeInfo& info, const AffineMatrix& affine,
                                                        const std::array<double, 3>& sizes,
                                                        const PerAxis<double>& requested_spacing) {
  const AxisDirections directions = parse_axis_codes(info.orientation);
  const RasGeometry geometry = compute_ras_geometry(info);
  PerAxis<double> spacing{};
  for (int axis = 0; axis < 3; ++axis) spacing[axis] = snap_spacing(geometry.spacing[axis], requested_spacing[axis]);
  const bool must_resample = needs_resampling(geometry, sizes, requested_spacing);
  const bool is_corner_aligned = is_aligned_to_corner(
      reorient_affine(affine, directions.file_axes, directions.is_flipped), geometry.size, spacing);
  std::array<AxisSamples, 3> result;
  for (int axis = 0; axis < 3; ++axis) {
    const double step = must_resample ? spacing[axis] / geometry.spacing[axis] : 1;
    const double begin =
        is_corner_aligned || !must_resample ? 0 : (static_cast<double>(geometry.size[axis]) - step * sizes[axis]) / 2;
    result[axis] = make_spacing_samples(geometry.size[axis], static_cast<int64_t>(sizes[axis]), begin, step);
  }
  return result;
}

/// Appends a sample between the voxels first and first + 1 of an axis of `num_voxels` voxels.
void add_sample(AxisSamples& samples, int64_t num_voxels, int64_t first, float weight) {
  samples.first_voxels.push_back(static_cast<int32_t>(first));
  samples.second_voxels.push_back(static_cast<int32_t>(std::min(first + (weight > 0 ? 1 : 0), num_voxels - 1)));
  samples.second_weights.push_back(weight);
}

}  // namespace

RasGeometry compute_ras_geometry(const VolumeInfo& info) {
  const AxisDirections directions = parse_axis_codes(info.orientation);
  RasGeometry result{};
  for (int axis = 0; axis < 3; ++axis) {
    result.size[axis] = info.size[directions.file_axes[axis]];
    result.spacing[axis] = info.spacing[directions.file_axes[axis]];
  }
  return result;
}

bool needs_full_volume(VolumeNormalization normalization) {
  return normalization != VolumeNormalization::kWindow && normalization != VolumeNormalization::kNone;
}

std::array<double, 3> compute_sampled_sizes(const RasGeometry& geometry, const VolumeSettings& settings) {
  std::array<double, 3> result{};
  for (int axis = 0; axis < 3; ++axis) {
    if (!settings.spacing) {
      result[axis] = static_cast<double>(settings.size[axis]);
      continue;
    }
    const double spacing = snap_spacing(geometry.spacing[axis], (*settings.spacing)[axis]);
    // Rounds halves to even, as numpy does.
    result[axis] = std::nearbyint(static_cast<double>(geometry.size[axis] - 1) * geometry.spacing[axis] / spacing + 1);
  }
  return result;
}

SampledGrid make_sampled_grid(const VolumeInfo& info, const AffineMatrix& affine, const VolumeSettings& settings,
                              const std::string& name) {
  const RasGeometry geometry = compute_ras_geometry(info);
  const std::array<double, 3> sizes = compute_sampled_sizes(geometry, settings);
  check_sampled_size(sizes, geometry, name);
  SampledGrid result;
  result.samples = settings.spacing ? make_spacing_samples_by_axis(info, affine, sizes, *settings.spacing)
                                    : make_resize_samples_by_axis(geometry, settings.size);
  for (int axis = 0; axis < 3; ++axis) {
    // As in MONAI's ResizeWithPadOrCrop, an odd voxel is cropped at the start and padded at the
    // end.
    const int64_t num_outputs = result.samples[axis].size();
    const int64_t requested_size = settings.size[axis];
    result.crop_begin[axis] = num_outputs > requested_size ? num_outputs / 2 - requested_size / 2 : 0;
    result.cropped_size[axis] = std::min(num_outputs, requested_size);
    result.pad_before[axis] = (requested_size - result.cropped_size[axis]) / 2;
    if (needs_full_volume(settings.normalization)) continue;
    result.samples[axis] = slice_samples(result.samples[axis], result.crop_begin[axis], result.cropped_size[axis]);
    result.crop_begin[axis] = 0;
  }
  return result;
}

std::array<AxisSamples, 3> order_samples_by_file_axis(const SampledGrid& grid, const VolumeInfo& info) {
  const AxisDirections directions = parse_axis_codes(info.orientation);
  std::array<AxisSamples, 3> result;
  for (int axis = 0; axis < 3; ++axis) {
    const int file_axis = directions.file_axes[axis];
    result[file_axis] = directions.is_flipped[axis] ? mirror_sample_voxels(grid.samples[axis], info.size[file_axis])
                                                    : grid.samples[axis];
  }
  return result;
}

// Source: area_pixel_compute_source_index and guard_index_and_lambda in ATen/native/UpSample.h.
AxisSamples make_resize_samples(int64_t num_voxels, int64_t num_outputs) {
  AxisSamples result;
  const float scale = static_cast<float>(num_voxels) / static_cast<float>(num_outputs);
  for (int64_t i = 0; i < num_outputs; ++i) {
    const float position = std::max(scale * (static_cast<float>(i) + 0.5F) - 0.5F, 0.0F);
    const auto first = std::min(static_cast<int64_t>(position), num_voxels - 1);
    add_sample(result, num_voxels, first, std::clamp(position - static_cast<float>(first), 0.0F, 1.0F));
  }
  return result;
}

AxisSamples make_spacing_samples(int64_t num_voxels, int64_t num_outputs, double begin, double step) {
  // A position this close to a voxel, in voxels, is moved to it, so that a background of 0 stays
  // exactly 0. Above the roundings of positions.
  constexpr double kSnapDistance = 1e-9;
  AxisSamples result;
  for (int64_t i = 0; i < num_outputs; ++i) {
    double position = std::clamp(begin + static_cast<double>(i) * step, 0.0, static_cast<double>(num_voxels - 1));
    if (const double rounded = std::round(position); std::abs(position - rounded) < kSnapDistance) position = rounded;
    const double first = std::floor(position);
    add_sample(result, num_voxels, static_cast<int64_t>(first), static_cast<float>(position - first));
  }
  return result;
}

std::vector<int64_t> make_evenly_spaced_indices(int64_t range, int64_t count) {
  std::vector<int64_t> result;
  const double step = count > 1 ? static_cast<double>(range - 1) / static_cast<double>(count - 1) : 0;
  for (int64_t i = 0; i < count; ++i) {
    result.push_back(static_cast<int64_t>(std::nearbyint(step * static_cast<double>(i))));
  }
  return result;
}

AxisSamples make_evenly_spaced_samples(int64_t num_voxels, int64_t num_outputs) {
  AxisSamples result;
  for (const int64_t voxel : make_evenly_spaced_indices(num_voxels, num_outputs))
    add_sample(result, num_voxels, voxel, 0);
  return result;
}

AxisSamples slice_samples(const AxisSamples& samples, int64_t begin, int64_t count) {
  const auto slice = [&](const auto& values) {
    return std::decay_t<decltype(values)>(values.begin() + begin, values.begin() + begin + count);
  };
  return {slice(samples.first_voxels), slice(samples.second_voxels), slice(samples.second_weights)};
}

AxisSamples mirror_sample_voxels(AxisSamples samples, int64_t num_voxels) {
  const auto mirror_voxel = [num_voxels](int32_t& voxel) { voxel = static_cast<int32_t>(num_voxels - 1 - voxel); };
  std::ranges::for_each(samples.first_voxels, mirror_voxel);
  std::ranges::for_each(samples.second_voxels, mirror_voxel);
  return samples;
}

AxisSamples reverse_samples(AxisSamples samples) {
  std::ranges::reverse(samples.first_voxels);
  std::ranges::reverse(samples.second_voxels);
  std::ranges::reverse(samples.second_weights);
  return samples;
}

namespace {

/// The number of stored bytes that are read at a time, rounded down to whole rows, at least one
/// row. Fits in the L2 cache of most processors. Not tuned.
constexpr int64_t kReadBlockBytes = int64_t{1} << 18;

/// Computes a + weight · (b - a) for `count` values.
VLMTRAIN_VECTORIZED void lerp_rows(const float* __restrict a, const float* __restrict b, float weight, int64_t count,
                                   float* __restrict out) {
  for (int64_t i = 0; i < count; ++i) out[i] = a[i] + weight * (b[i] - a[i]);
}

/// Resamples a row of the scan along the first axis.
void interpolate_row(const float* voxels, const AxisSamples& samples, float* out) {
  const int64_t count = samples.size();
  const int32_t* const first_voxels = samples.first_voxels.data();
  const int32_t* const second_voxels = samples.second_voxels.data();
  const float* const second_weights = samples.second_weights.data();
  for (int64_t i = 0; i < count; ++i) {
    const float a = voxels[first_voxels[i]];
    out[i] = a + second_weights[i] * (voxels[second_voxels[i]] - a);
  }
}

}  // namespace

OutputSchedule::OutputSchedule(const AxisSamples& samples, int64_t voxels) {
  output_offsets_.assign(voxels + 1, 0);
  is_voxel_needed_.assign(voxels, false);
  const auto compute_last_voxel = [&](int64_t i) {
    return std::max(samples.first_voxels[i], samples.second_voxels[i]);
  };
  for (int64_t i = 0; i < samples.size(); ++i) {
    is_voxel_needed_[samples.first_voxels[i]] = true;
    is_voxel_needed_[samples.second_voxels[i]] = true;
    ++output_offsets_[compute_last_voxel(i) + 1];
    sorted_output_indices_.push_back(i);
  }
  // From the number of outputs of each voxel to their first index.
  for (int64_t voxel = 0; voxel < voxels; ++voxel) output_offsets_[voxel + 1] += output_offsets_[voxel];
  std::ranges::stable_sort(sorted_output_indices_, {}, compute_last_voxel);
}

FrameSampler::FrameSampler(const NiftiHeader& header, const std::array<AxisSamples, 3>& samples)
    : header_(header),
      axis_samples_(samples),
      row_schedule_(samples[1], header.size[1]),
      plane_schedule_(samples[2], header.size[2]),
      voxel_converter_(header.type, header.is_byte_swapped, header.scaling) {
  const int64_t rows_per_block = std::clamp<int64_t>(kReadBlockBytes / header.row_bytes(), 1, header.size[1]);
  stored_rows_.resize(rows_per_block * header.row_bytes());
  voxel_row_.resize(header.size[0]);
  for (auto& row : resampled_rows_) row.resize(samples[0].size());
  for (auto& plane : resampled_planes_) plane.resize(samples[0].size() * samples[1].size());
  output_plane_.resize(resampled_planes_[0].size());
}

void FrameSampler::resample_row(int64_t row, const float* voxels) {
  interpolate_row(voxels, axis_samples_[0], resampled_rows_[row % 2].data());
  std::vector<float>& plane = resampled_planes_[plane_index_ % 2];
  row_schedule_.for_each_completed_output(row, [&](int64_t output) {
    const std::vector<float>& a = resampled_rows_[axis_samples_[1].first_voxels[output] % 2];
    const std::vector<float>& b = resampled_rows_[axis_samples_[1].second_voxels[output] % 2];
    lerp_rows(a.data(), b.data(), axis_samples_[1].second_weights[output], std::ssize(a),
              plane.data() + output * std::ssize(a));
  });
}

void FrameSampler::read_plane(VolumeStream& stream) {
  const int64_t row_bytes = header_.row_bytes();
  const int64_t rows_per_block = std::ssize(stored_rows_) / row_bytes;
  const bool must_check_all_rows = voxel_converter_.may_be_nonfinite();
  const bool is_plane_needed = plane_schedule_.is_needed(plane_index_);
  for (int64_t begin = 0; begin < header_.size[1]; begin += rows_per_block) {
    const int64_t rows = std::min(rows_per_block, header_.size[1] - begin);
    stream.read(std::span(stored_rows_).first(rows * row_bytes));
    for (int64_t row = begin; row < begin + rows; ++row) {
      const bool is_row_needed = is_plane_needed && row_schedule_.is_needed(row);
      if (!is_row_needed && !must_check_all_rows) continue;
      voxel_converter_.convert(stored_rows_.data() + (row - begin) * row_bytes, header_.size[0], voxel_row_.data());
      if (must_check_all_rows) num_nonfinite_voxels_ += count_nonfinite_values(voxel_row_.data(), header_.size[0]);
      if (is_row_needed) resample_row(row, voxel_row_.data());
    }
  }
}

void FrameSampler::check_finite(const std::string& name) const {
  if (num_nonfinite_voxels_ == 0) return;
  throw data_error(
      "{}: {} of the scan's {} voxels are NaN, infinite or too large for fp32; replace them in the tool that wrote it, "
      "in Python: numpy.nan_to_num(values, posinf=0, neginf=0)",
      name, num_nonfinite_voxels_, header_.size[0] * header_.size[1] * header_.size[2]);
}

void FrameSampler::read(VolumeStream& stream, const PlaneCallback& callback) {
  num_nonfinite_voxels_ = 0;
  const AxisSamples& plane_samples = axis_samples_[2];
  for (plane_index_ = 0; plane_index_ < header_.size[2]; ++plane_index_) {
    if (!plane_schedule_.is_needed(plane_index_) && !voxel_converter_.may_be_nonfinite()) {
      stream.skip(static_cast<uint64_t>(header_.plane_bytes()));
      continue;
    }
    read_plane(stream);
    plane_schedule_.for_each_completed_output(plane_index_, [&](int64_t output) {
      lerp_rows(resampled_planes_[plane_samples.first_voxels[output] % 2].data(),
                resampled_planes_[plane_samples.second_voxels[output] % 2].data(), plane_samples.second_weights[output],
                std::ssize(output_plane_), output_plane_.data());
      callback(output, output_plane_.data(), std::ssize(output_plane_));
    });
  }
  check_finite(stream.name());
}

}  // namespace vlmtrain::image
