#pragma once

#include <cstdint>
#include <numeric>
#include <optional>
#include <vector>

#include "vlmtrain/base/error.h"
#include "vlmtrain/image/pixel_transforms.h"
#include "vlmtrain/image/video.h"

namespace vlmtrain::models {

/// Returns the indices of all frames of a video that is a list of frames: these are already
/// selected, so they are not sampled again, as in transformers with do_sample_frames=False. Returns
/// nothing for other videos, and for lists of more than `max_frames` (data.video_max_frames).
inline std::optional<std::vector<int64_t>> list_preselected_frames(const image::VideoInfo& video, int64_t max_frames) {
  if (!video.is_frame_list || video.num_frames > max_frames) return std::nullopt;
  std::vector<int64_t> all(static_cast<size_t>(video.num_frames));
  std::iota(all.begin(), all.end(), int64_t{0});
  return all;
}

/// Throws UserError (kBadData) if video frames are normalized differently from images, since all
/// pixels of a micro-batch are normalized alike. Call it only for data with videos: other data does
/// not need the check.
inline void check_frame_normalization(const image::Normalization& images, const image::Normalization& frames) {
  if (images == frames) return;
  throw data_error(
      "the checkpoint's image_mean, image_std or rescale_factor of videos differ from those of images, but both are "
      "normalized alike; make them equal in its processor files, or train only on images");
}

}  // namespace vlmtrain::models
