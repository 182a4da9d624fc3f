#pragma once

#include <cstdint>
#include <vector>

namespace vlmtrain::image {

/// How one axis is resampled: output i is a + weight · (b - a) of the voxels a = first[i] and b = second[i], which are
/// the same or neighbours. Written so, what is constant stays so to the bit.
struct AxisSamples {
  std::vector<int32_t> first;
  std::vector<int32_t> second;
  std::vector<float> weight;

  int64_t size() const { return static_cast<int64_t>(first.size()); }
};

/// The whole axis by so many samples: torch's interpolate(mode="trilinear", align_corners=False), whose places are
/// computed in fp32.
AxisSamples make_fitted_samples(int64_t voxels, int64_t outputs);

/// A sample every `step` voxels from place `begin` on, as MONAI's Spacing(padding_mode="border") takes them.
AxisSamples make_stepped_samples(int64_t voxels, int64_t outputs, double begin, double step);

/// `outputs` whole voxels, spread evenly from the first to the last: numpy's linspace, rounded.
AxisSamples make_voxel_samples(int64_t voxels, int64_t outputs);

/// Only those outputs.
AxisSamples select_samples(const AxisSamples& samples, int64_t begin, int64_t count);

/// The same outputs of an axis that is stored the other way round.
AxisSamples mirror_samples(AxisSamples samples, int64_t voxels);

/// The outputs in the other order.
AxisSamples reverse_samples(AxisSamples samples);

}  // namespace vlmtrain::image
