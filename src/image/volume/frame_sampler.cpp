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
VLMTRAIN_VECTORIZED void blend_rows(const float* __restrict a, const float* __restrict b, float weight, int64_t count,
                                    float* __restrict out) {
  for (int64_t i = 0; i < count; ++i) out[i] = a[i] + weight * (b[i] - a[i]);
}

/// Resamples a row of the scan along the first axis.
void sample_row(const float* voxels, const AxisSamples& samples, float* out) {
  const int64_t count = samples.size();
  const int32_t* const first = samples.first.data();
  const int32_t* const second = samples.second.data();
  const float* const weight = samples.weight.data();
  for (int64_t i = 0; i < count; ++i) {
    const float a = voxels[first[i]];
    out[i] = a + weight[i] * (voxels[second[i]] - a);
  }
}

}  // namespace

OutputSchedule::OutputSchedule(const AxisSamples& samples, int64_t voxels) {
  output_begin_.assign(voxels + 1, 0);
  is_needed_.assign(voxels, false);
  const auto get_last_voxel = [&](int64_t i) { return std::max(samples.first[i], samples.second[i]); };
  for (int64_t i = 0; i < samples.size(); ++i) {
    is_needed_[samples.first[i]] = true;
    is_needed_[samples.second[i]] = true;
    ++output_begin_[get_last_voxel(i) + 1];
    outputs_.push_back(i);
  }
  // From the number of outputs of each voxel to their first index.
  for (int64_t voxel = 0; voxel < voxels; ++voxel) output_begin_[voxel + 1] += output_begin_[voxel];
  std::ranges::stable_sort(outputs_, {}, get_last_voxel);
}

FrameSampler::FrameSampler(const NiftiHeader& header, const std::array<AxisSamples, 3>& samples)
    : header_(header),
      samples_(samples),
      row_schedule_(samples[1], header.size[1]),
      plane_schedule_(samples[2], header.size[2]),
      converter_(header.type, header.is_swapped, header.scaling) {
  const int64_t rows_per_block = std::clamp<int64_t>(kReadBlockBytes / header.row_bytes(), 1, header.size[1]);
  stored_block_.resize(rows_per_block * header.row_bytes());
  voxel_row_.resize(header.size[0]);
  for (auto& row : rows_) row.resize(samples[0].size());
  for (auto& plane : planes_) plane.resize(samples[0].size() * samples[1].size());
  blended_plane_.resize(planes_[0].size());
}

void FrameSampler::resample_row(int64_t row, const float* voxels) {
  sample_row(voxels, samples_[0], rows_[row % 2].data());
  std::vector<float>& plane = planes_[plane_index_ % 2];
  row_schedule_.for_each_completed_output(row, [&](int64_t output) {
    const std::vector<float>& a = rows_[samples_[1].first[output] % 2];
    const std::vector<float>& b = rows_[samples_[1].second[output] % 2];
    blend_rows(a.data(), b.data(), samples_[1].weight[output], std::ssize(a), plane.data() + output * std::ssize(a));
  });
}

void FrameSampler::read_plane(VolumeStream& stream) {
  const int64_t row_bytes = header_.row_bytes();
  const int64_t rows_per_block = std::ssize(stored_block_) / row_bytes;
  const bool must_check_all_rows = converter_.may_be_nonfinite();
  const bool is_plane_needed = plane_schedule_.is_needed(plane_index_);
  for (int64_t begin = 0; begin < header_.size[1]; begin += rows_per_block) {
    const int64_t rows = std::min(rows_per_block, header_.size[1] - begin);
    stream.read(std::span(stored_block_).first(rows * row_bytes));
    for (int64_t row = begin; row < begin + rows; ++row) {
      const bool is_row_needed = is_plane_needed && row_schedule_.is_needed(row);
      if (!is_row_needed && !must_check_all_rows) continue;
      converter_.convert(stored_block_.data() + (row - begin) * row_bytes, header_.size[0], voxel_row_.data());
      if (must_check_all_rows) num_nonfinite_voxels_ += count_nonfinite(voxel_row_.data(), header_.size[0]);
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
  const AxisSamples& plane_samples = samples_[2];
  for (plane_index_ = 0; plane_index_ < header_.size[2]; ++plane_index_) {
    if (!plane_schedule_.is_needed(plane_index_) && !converter_.may_be_nonfinite()) {
      stream.skip(static_cast<uint64_t>(header_.plane_bytes()));
      continue;
    }
    read_plane(stream);
    plane_schedule_.for_each_completed_output(plane_index_, [&](int64_t output) {
      blend_rows(planes_[plane_samples.first[output] % 2].data(), planes_[plane_samples.second[output] % 2].data(),
                 plane_samples.weight[output], std::ssize(blended_plane_), blended_plane_.data());
      callback(output, blended_plane_.data(), std::ssize(blended_plane_));
    });
  }
  check_finite(stream.name());
}

}  // namespace vlmtrain::image
