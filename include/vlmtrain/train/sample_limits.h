#pragma once

#include <cstdint>
#include <vector>

#include "vlmtrain/io/records.h"
#include "vlmtrain/planner/plan.h"
#include "vlmtrain/train/config.h"

namespace vlmtrain::train {

/// The fewest frames of a video that a suggestion may name; suggestions are multiples of it. A
/// temporal patch has two frames.
inline constexpr int64_t kMinFrames = 4;
inline constexpr int64_t kFramesPerPatch = 2;

/// Returns the configuration keys that make the samples of data.train smaller: pixels of an image,
/// frames of a video, images and tokens of a sample. `workload` has their measured sizes; further
/// measurements run on data.num_workers threads. The arguments must outlive the result.
std::vector<planner::SampleLimit> make_sample_limits(const io::Records& records, const Config& config,
                                                     const planner::Workload& workload);

/// Returns the most pixels of an image in these batches, as the vision tower takes them; 0 without
/// images.
int64_t compute_max_pixels(const planner::Workload& workload);

/// Returns the fewest pixels that a processor accepts for such images.
int64_t compute_min_pixels(const planner::Workload& workload);

/// Returns the unit of numbers of pixels worth suggesting for such images.
int64_t compute_pixel_unit(const planner::Workload& workload);

}  // namespace vlmtrain::train
