#include "image/volume/frame_sampler.h"

#include <algorithm>

#include "image/vectorised.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::image {
namespace {

constexpr int64_t kBlockBytes = int64_t{1} << 18;

VLMTRAIN_VECTORISED void mix_rows(const float* __restrict a, const float* __restrict b, float weight, int64_t count,
                                  float* __restrict out) {
  for (int64_t i = 0; i < count; ++i) out[i] = a[i] + weight * (b[i] - a[i]);
}

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

OutputsInFileOrder::OutputsInFileOrder(const AxisSamples& samples, int64_t voxels) {
  begin_.assign(voxels + 1, 0);
  needed_.assign(voxels, false);
  const auto last_of = [&](int64_t i) { return std::max(samples.first[i], samples.second[i]); };
  for (int64_t i = 0; i < samples.size(); ++i) {
    needed_[samples.first[i]] = true;
    needed_[samples.second[i]] = true;
    ++begin_[last_of(i) + 1];
    outputs_.push_back(i);
  }
  for (int64_t voxel = 0; voxel < voxels; ++voxel) begin_[voxel + 1] += begin_[voxel];
  std::ranges::stable_sort(outputs_, {}, last_of);
}

FrameSampler::FrameSampler(const NiftiHeader& header, const std::array<AxisSamples, 3>& samples)
    : header_(header),
      samples_(samples),
      row_order_(samples[1], header.size[1]),
      plane_order_(samples[2], header.size[2]),
      voxels_(header.type, header.swapped, header.scaling) {
  const int64_t rows_of_block = std::clamp<int64_t>(kBlockBytes / header.row_bytes(), 1, header.size[1]);
  stored_.resize(rows_of_block * header.row_bytes());
  voxel_row_.resize(header.size[0]);
  for (auto& row : rows_) row.resize(samples[0].size());
  for (auto& plane : planes_) plane.resize(samples[0].size() * samples[1].size());
  mixed_.resize(planes_[0].size());
}

void FrameSampler::take_row(int64_t row, const float* voxels) {
  sample_row(voxels, samples_[0], rows_[row % 2].data());
  std::vector<float>& plane = planes_[plane_ % 2];
  row_order_.completed_by(row, [&](int64_t output) {
    const std::vector<float>& a = rows_[samples_[1].first[output] % 2];
    const std::vector<float>& b = rows_[samples_[1].second[output] % 2];
    mix_rows(a.data(), b.data(), samples_[1].weight[output], std::ssize(a), plane.data() + output * std::ssize(a));
  });
}

void FrameSampler::read_plane(VolumeStream& stream) {
  const int64_t row_bytes = header_.row_bytes();
  const int64_t rows_of_block = std::ssize(stored_) / row_bytes;
  const bool looks_at_all_rows = voxels_.may_not_be_finite();
  const bool is_needed = plane_order_.needs(plane_);
  for (int64_t begin = 0; begin < header_.size[1]; begin += rows_of_block) {
    const int64_t rows = std::min(rows_of_block, header_.size[1] - begin);
    stream.read(std::span(stored_).first(rows * row_bytes));
    for (int64_t row = begin; row < begin + rows; ++row) {
      const bool is_row_needed = is_needed && row_order_.needs(row);
      if (!is_row_needed && !looks_at_all_rows) continue;
      voxels_.convert(stored_.data() + (row - begin) * row_bytes, header_.size[0], voxel_row_.data());
      if (looks_at_all_rows) not_finite_ += count_not_finite(voxel_row_.data(), header_.size[0]);
      if (is_row_needed) take_row(row, voxel_row_.data());
    }
  }
}

void FrameSampler::check_finite(const std::string& name) const {
  if (not_finite_ == 0) return;
  throw data_error(
      "{}: {} of the scan's {} voxels are NaN, infinite or too large for fp32; replace them in the tool that wrote it, "
      "in Python: numpy.nan_to_num(values, posinf=0, neginf=0)",
      name, not_finite_, header_.size[0] * header_.size[1] * header_.size[2]);
}

void FrameSampler::read(VolumeStream& stream, const TakePlane& take) {
  not_finite_ = 0;
  const AxisSamples& along = samples_[2];
  for (plane_ = 0; plane_ < header_.size[2]; ++plane_) {
    if (!plane_order_.needs(plane_) && !voxels_.may_not_be_finite()) {
      stream.skip(static_cast<uint64_t>(header_.plane_bytes()));
      continue;
    }
    read_plane(stream);
    plane_order_.completed_by(plane_, [&](int64_t output) {
      mix_rows(planes_[along.first[output] % 2].data(), planes_[along.second[output] % 2].data(), along.weight[output],
               std::ssize(mixed_), mixed_.data());
      take(output, mixed_.data(), std::ssize(mixed_));
    });
  }
  check_finite(stream.name());
}

}  // namespace vlmtrain::image
