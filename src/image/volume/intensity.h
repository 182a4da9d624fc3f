#pragma once

#include <string>
#include <vector>

#include "vlmtrain/image/volume.h"

namespace vlmtrain::image {

/// A transform of intensities: (value - offset) / divisor, in fp32. The default is the identity.
struct IntensityTransform {
  float offset = 0;
  float divisor = 1;
  bool clips_to_unit_range = false;  ///< results are clipped to 0 to 1
  bool preserves_zeros = false;      ///< zeros stay 0

  float apply(float value) const {
    if (preserves_zeros && value == 0) return 0;
    const float transformed = (value - offset) / divisor;
    if (!clips_to_unit_range) return transformed;
    return transformed < 0 ? 0 : (transformed > 1 ? 1 : transformed);
  }
};

/// Returns the transform that normalizes a volume of these values as the settings ask. `values`: of
/// all resampled voxels, not empty. Throws UserError (kBadData) if the normalization needs
/// different values or a foreground and there are none. `name` identifies the scan in messages.
IntensityTransform make_intensity_transform(const std::vector<float>& values, const VolumeSettings& settings,
                                            const std::string& name);

/// Returns two percentiles, 0 to 100, of the values: linear between the two nearest ranks, as in
/// numpy. REQUIRES: `values` is not empty.
std::array<double, 2> compute_percentiles(std::vector<float> values, const std::array<double, 2>& percentiles);

}  // namespace vlmtrain::image
