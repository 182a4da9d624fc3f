#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "image/volume/affine.h"
#include "vlmtrain/image/volume.h"

namespace vlmtrain::image {

/// The linear interpolation along one axis: output i is a + weight[i] · (b - a) of the voxels a =
/// first[i] and b = second[i], which are equal or neighbors. In this form, constant values stay
/// constant to the bit.
struct AxisSamples {
  std::vector<int32_t> first;
  std::vector<int32_t> second;
  std::vector<float> weight;

  int64_t size() const { return static_cast<int64_t>(first.size()); }
};

/// Returns `outputs` samples of the whole axis, as in torch's interpolate(mode="trilinear",
/// align_corners=False), whose positions are computed in fp32.
AxisSamples make_fitted_samples(int64_t voxels, int64_t outputs);

/// Returns samples at begin, begin + step, …, as in MONAI's Spacing(padding_mode="border").
AxisSamples make_stepped_samples(int64_t voxels, int64_t outputs, double begin, double step);

/// Returns `outputs` evenly spaced voxels without interpolation; see space_evenly().
AxisSamples make_voxel_samples(int64_t voxels, int64_t outputs);

/// Returns the outputs begin to begin + count - 1.
AxisSamples select_samples(const AxisSamples& samples, int64_t begin, int64_t count);

/// Returns the same outputs for an axis that is stored in reverse.
AxisSamples mirror_samples(AxisSamples samples, int64_t voxels);

/// Returns the outputs in reverse order.
AxisSamples reverse_samples(AxisSamples samples);

/// Returns `count` of the numbers 0 to range-1, evenly from the first to the last: numpy's
/// linspace, rounded.
std::vector<int64_t> space_evenly(int64_t range, int64_t count);

/// The resampling, cropping and padding of a volume, by right, anterior and superior.
struct SampledGrid {
  std::array<AxisSamples, 3> samples;
  std::array<int64_t, 3> crop_begin{};  ///< the first sample in the result
  std::array<int64_t, 3> num_kept{};    ///< the number of samples in the result
  std::array<int64_t, 3> pad_before{};  ///< zeros in the result before the samples

  int64_t num_values() const { return samples[0].size() * samples[1].size() * samples[2].size(); }
};

/// The size in voxels and the spacing in mm of a reoriented scan, by right, anterior and superior.
struct RasShape {
  std::array<int64_t, 3> size;
  std::array<double, 3> spacing;
};

RasShape get_ras_shape(const VolumeInfo& info);

/// The maximum number of values after resampling, 2 GiB in fp32. More results from a spacing far
/// below the scan's.
inline constexpr int64_t kMaxSampledValues = int64_t{1} << 29;

/// Returns whether the normalization depends on voxels that are cropped.
bool needs_full_volume(VolumeNormalization normalization);

/// Returns the number of samples along each axis. Not limited, hence as doubles.
std::array<double, 3> compute_sampled_sizes(const RasShape& shape, const VolumeSettings& settings);

/// Throws UserError (kBadData), with `name`, if the spacing gives more than kMaxSampledValues.
/// `affine`: of the file.
SampledGrid make_sampled_grid(const VolumeInfo& info, const AffineMatrix& affine, const VolumeSettings& settings,
                              const std::string& name);

/// Returns the samples by the file's axes, in the file's direction.
std::array<AxisSamples, 3> order_samples_by_file_axis(const SampledGrid& grid, const VolumeInfo& info);

/// A copy between two memory layouts of three axes: the number of values and the strides, in
/// values, along each axis of the target, whose last axis is contiguous.
struct StridedCopy {
  std::array<int64_t, 3> count;
  std::array<int64_t, 3> source_stride;
  std::array<int64_t, 3> target_stride;
};

/// Writes transform(source) to target, in tiles, so that neither side is accessed with large
/// strides only.
template <class Value, class Transform>
void copy_strided(const StridedCopy& copy, const float* source, Value* target, const Transform& transform) {
  // The axis along which the source is contiguous, and the third one.
  const int inner = copy.source_stride[0] < copy.source_stride[1] ? 0 : 1;
  const int outer = 1 - inner;
  constexpr int64_t kTileSize = 16;  // floats of one cache line of 64 bytes
  for (int64_t outer_index = 0; outer_index < copy.count[outer]; ++outer_index) {
    const float* const source_row = source + outer_index * copy.source_stride[outer];
    Value* const target_row = target + outer_index * copy.target_stride[outer];
    for (int64_t inner_begin = 0; inner_begin < copy.count[inner]; inner_begin += kTileSize) {
      const int64_t inner_end = std::min(inner_begin + kTileSize, copy.count[inner]);
      for (int64_t begin = 0; begin < copy.count[2]; begin += kTileSize) {
        const int64_t end = std::min(begin + kTileSize, copy.count[2]);
        for (int64_t inner_index = inner_begin; inner_index < inner_end; ++inner_index) {
          for (int64_t i = begin; i < end; ++i) {
            target_row[inner_index * copy.target_stride[inner] + i * copy.target_stride[2]] =
                transform(source_row[inner_index * copy.source_stride[inner] + i * copy.source_stride[2]]);
          }
        }
      }
    }
  }
}

}  // namespace vlmtrain::image
