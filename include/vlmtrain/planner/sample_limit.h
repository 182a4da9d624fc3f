#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "vlmtrain/planner/plan.h"

namespace vlmtrain::planner {

/// The samples of a request once one of their limits is lower.
struct LimitedSamples {
  Workload workload;
  int64_t num_dropped = 0;  ///< samples that the limit makes unusable
  int64_t num_samples = 0;  ///< of so many; 0: hypothetical ones
};

/// A number in the configuration, or behind a flag of `vlmtrain plan`, that makes samples smaller where it is lower:
/// the pixels of a picture, the frames of a video, the length of a sample.
struct SampleLimit {
  std::string argument_format;  ///< what is typed, with {} for the number: "data.image_max_pixels={}"
  int64_t current = 0;          ///< the least number that changes nothing
  /// The least that makes sense; found when it is asked for, since that may take measuring.
  std::function<int64_t()> find_min;
  int64_t multiple = 1;     ///< numbers to propose are multiples of it
  std::string description;  ///< "smaller pictures"
  /// The samples with this number; nothing where it is none that can be set. `all_samples`: exactly; else from those
  /// that are the largest without it, which is faster. Throws as measuring did.
  std::function<std::optional<LimitedSamples>(int64_t limit, bool all_samples)> measure;
};

}  // namespace vlmtrain::planner
