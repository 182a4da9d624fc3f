#pragma once

#include <string>
#include <vector>

#include "vlmtrain/image/volume.h"

namespace vlmtrain::image {

/// A transform of intensities: (value - subtract) / divide, in fp32.
struct IntensityTransform {
  float subtract = 0;
  float divide = 1;
  bool is_clipped = false;  ///< clip to 0 and 1
  bool keeps_zero = false;  ///< zeros stay 0

  float apply(float value) const {
    if (keeps_zero && value == 0) return 0;
    const float transformed = (value - subtract) / divide;
    if (!is_clipped) return transformed;
    return transformed < 0 ? 0 : (transformed > 1 ? 1 : transformed);
  }
};

/// Returns the transform of the settings for these values. Throws UserError (kBadData), with
/// `name`, if the values are constant or have no foreground and the normalization needs them.
IntensityTransform make_intensity_transform(const std::vector<float>& values, const VolumeSettings& settings,
                                            const std::string& name);

/// Returns two percentiles as numpy does, linear between the two nearest ranks.
std::array<double, 2> compute_percentiles(std::vector<float> values, const std::array<double, 2>& percentiles);

}  // namespace vlmtrain::image
