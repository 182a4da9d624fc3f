#include "image/volume/axis_samples.h"

#include <algorithm>
#include <cmath>

#include "image/volume/spread_evenly.h"

namespace vlmtrain::image {
namespace {

void add_sample(AxisSamples& samples, int64_t voxels, int64_t first, float weight) {
  samples.first.push_back(static_cast<int32_t>(first));
  samples.second.push_back(static_cast<int32_t>(std::min(first + (weight > 0 ? 1 : 0), voxels - 1)));
  samples.weight.push_back(weight);
}

}  // namespace

// Source: area_pixel_compute_source_index and guard_index_and_lambda in ATen/native/UpSample.h.
AxisSamples make_fitted_samples(int64_t voxels, int64_t outputs) {
  AxisSamples result;
  const float scale = static_cast<float>(voxels) / static_cast<float>(outputs);
  for (int64_t i = 0; i < outputs; ++i) {
    const float position = std::max(scale * (static_cast<float>(i) + 0.5F) - 0.5F, 0.0F);
    const auto first = std::min(static_cast<int64_t>(position), voxels - 1);
    add_sample(result, voxels, first, std::clamp(position - static_cast<float>(first), 0.0F, 1.0F));
  }
  return result;
}

AxisSamples make_stepped_samples(int64_t voxels, int64_t outputs, double begin, double step) {
  // A place so near to a voxel is meant to be it: background that is exactly 0 stays so.
  constexpr double kRounding = 1e-9;
  AxisSamples result;
  for (int64_t i = 0; i < outputs; ++i) {
    double position = std::clamp(begin + static_cast<double>(i) * step, 0.0, static_cast<double>(voxels - 1));
    if (const double rounded = std::round(position); std::abs(position - rounded) < kRounding) position = rounded;
    const double first = std::floor(position);
    add_sample(result, voxels, static_cast<int64_t>(first), static_cast<float>(position - first));
  }
  return result;
}

AxisSamples make_voxel_samples(int64_t voxels, int64_t outputs) {
  AxisSamples result;
  for (const int64_t voxel : space_evenly(voxels, outputs)) add_sample(result, voxels, voxel, 0);
  return result;
}

AxisSamples select_samples(const AxisSamples& samples, int64_t begin, int64_t count) {
  const auto slice = [&](const auto& values) {
    return std::decay_t<decltype(values)>(values.begin() + begin, values.begin() + begin + count);
  };
  return {slice(samples.first), slice(samples.second), slice(samples.weight)};
}

AxisSamples mirror_samples(AxisSamples samples, int64_t voxels) {
  const auto mirror_voxel = [voxels](int32_t& voxel) { voxel = static_cast<int32_t>(voxels - 1 - voxel); };
  std::ranges::for_each(samples.first, mirror_voxel);
  std::ranges::for_each(samples.second, mirror_voxel);
  return samples;
}

AxisSamples reverse_samples(AxisSamples samples) {
  std::ranges::reverse(samples.first);
  std::ranges::reverse(samples.second);
  std::ranges::reverse(samples.weight);
  return samples;
}

}  // namespace vlmtrain::image
