#pragma once

#include <string>
#include <vector>

#include "vlmtrain/image/volume.h"

namespace vlmtrain::image {

/// What a value becomes: (value - subtract) / divide, in fp32.
struct IntensityTransform {
  float subtract = 0;
  float divide = 1;
  bool is_clipped = false;  ///< to 0 and 1
  bool keeps_zero = false;  ///< values that are 0 stay so

  float apply(float value) const {
    if (keeps_zero && value == 0) return 0;
    const float transformed = (value - subtract) / divide;
    if (!is_clipped) return transformed;
    return transformed < 0 ? 0 : (transformed > 1 ? 1 : transformed);
  }
};

/// That of the settings for these values. A data error where they do not differ, or none is foreground.
/// `values` is put into another order only where it says so: by percentiles, of which it is a copy.
IntensityTransform make_intensity_transform(const std::vector<float>& values, const VolumeSettings& settings,
                                            const std::string& name);

/// Two percentiles as numpy takes them, linear between the two nearest ranks.
std::array<double, 2> compute_percentiles(std::vector<float> values, const std::array<double, 2>& percentiles);

}  // namespace vlmtrain::image
