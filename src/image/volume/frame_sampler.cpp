#include "image/volume/frame_sampler.h"

#include <algorithm>

#include "image/pixel_layout.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::image {
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
