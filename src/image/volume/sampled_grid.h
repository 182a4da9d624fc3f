#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "image/volume/axis_samples.h"
#include "image/volume/best_affine.h"
#include "vlmtrain/image/volume.h"

namespace vlmtrain::image {

/// The places of a volume that are looked at, and where they lie in the result. Axes are right, front, top; lines of
/// `samples` are those of the turned volume.
struct SampledGrid {
  std::array<AxisSamples, 3> samples;
  std::array<int64_t, 3> crop_begin{};  ///< of the samples, the first that is in the result
  std::array<int64_t, 3> num_kept{};    ///< so many are
  std::array<int64_t, 3> pad_before{};  ///< zeros in the result before them

  int64_t num_values() const { return samples[0].size() * samples[1].size() * samples[2].size(); }
};

/// Voxels and spacing along right, front and top.
struct RasShape {
  std::array<int64_t, 3> size;
  std::array<double, 3> spacing;
};
RasShape get_ras_shape(const VolumeInfo& info);

/// Values that a resampling may have: more is a spacing much finer than the scan's.
inline constexpr int64_t kMaxSampledValues = int64_t{1} << 29;

/// Whether a volume's normalisation looks at what is cropped away too.
bool needs_full_volume(VolumeNormalization normalization);

/// How many samples each axis gets; without a bound, hence as doubles.
std::array<double, 3> compute_sampled_sizes(const RasShape& shape, const VolumeSettings& settings);

/// A data error where the spacing makes more than kMaxSampledValues. `affine` is the file's.
SampledGrid make_sampled_grid(const VolumeInfo& info, const AffineMatrix& affine, const VolumeSettings& settings,
                              const std::string& name);

/// By the file's axes, in its order.
std::array<AxisSamples, 3> order_samples_by_file_axis(const SampledGrid& grid, const VolumeInfo& info);

}  // namespace vlmtrain::image
