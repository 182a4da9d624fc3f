#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "vlmtrain/io/records.h"
#include "vlmtrain/planner/plan.h"
#include "vlmtrain/train/config.h"

namespace vlmtrain::train {

/// The smallest data.video_max_frames that a suggestion names: two temporal patches. Not tuned.
inline constexpr int64_t kMinSuggestedFrames = 4;
/// Frames of a temporal patch of Qwen2-VL. Suggested numbers of frames are multiples of it.
inline constexpr int64_t kFramesPerTemporalPatch = 2;

/// Returns the configuration keys that can make the samples of data.train smaller: pixels per
/// image, frames per video, images and tokens per sample. The planner suggests them if a run does
/// not fit. `workload` has the sizes of the largest samples; other sizes are measured when the
/// result is used, on data.num_workers threads.
std::vector<planner::SampleLimit> make_sample_limits(std::shared_ptr<const io::Records> records, const Config& config,
                                                     const planner::Workload& workload);

/// Returns the maximum number of pixels per image, or per tile of models with tiles, in the largest
/// batches of `workload`, after the processor's resizing; 0 without images.
int64_t compute_max_image_pixels(const planner::Workload& workload);

/// Returns the smallest number of pixels per image that is worth suggesting: one tile, or 16 image
/// tokens for models with patch grids; 0 without images.
int64_t compute_min_suggested_image_pixels(const planner::Workload& workload);

/// Returns the number of pixels of which suggestions are multiples: those of a tile, or of an image
/// token for models with patch grids; 0 without images.
int64_t compute_pixel_granularity(const planner::Workload& workload);

}  // namespace vlmtrain::train
