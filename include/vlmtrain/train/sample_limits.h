#pragma once

#include <cstdint>
#include <vector>

#include "vlmtrain/io/records.h"
#include "vlmtrain/planner/sample_limit.h"
#include "vlmtrain/train/config.h"

namespace vlmtrain::train {

/// The fewest frames of a video worth proposing, and of what proposals are multiples: a patch has two frames.
inline constexpr int64_t kMinFrames = 4;
inline constexpr int64_t kFramesPerPatch = 2;

/// The keys of a configuration that make the samples of data.train smaller: pixels of a picture, frames of a video,
/// pictures and tokens of a sample. `workload` is what was measured of them. Measuring again goes on data.num_workers
/// threads. The arguments must outlive what is returned.
std::vector<planner::SampleLimit> make_sample_limits(const io::Records& records, const Config& config,
                                                     const planner::Workload& workload);

/// The most pixels of an image in these batches, as the tower takes them; 0 without images.
int64_t compute_max_pixels(const planner::Workload& workload);
/// The fewest that a processor can be told for such images, and of what the numbers worth telling are multiples.
int64_t compute_min_pixels(const planner::Workload& workload);
int64_t compute_pixel_unit(const planner::Workload& workload);

}  // namespace vlmtrain::train
