#pragma once

#include <cstdint>
#include <numeric>
#include <optional>
#include <vector>

#include "vlmtrain/base/error.h"
#include "vlmtrain/image/normalize.h"
#include "vlmtrain/image/video.h"

namespace vlmtrain::models {

/// Returns the indices of all frames of a video whose frames were given one by one: somebody chose them, so that none
/// is left out, as transformers with do_sample_frames=False, whatever the checkpoint samples of a file. Returns
/// nothing for another video, and where there are more than `max_frames` (data.video_max_frames).
inline std::optional<std::vector<int64_t>> list_all_frames(const image::VideoInfo& video, int64_t max_frames) {
  if (!video.is_frame_list || video.frames > max_frames) return std::nullopt;
  std::vector<int64_t> all(static_cast<size_t>(video.frames));
  std::iota(all.begin(), all.end(), int64_t{0});
  return all;
}

/// Throws UserError (kBadData) for a video whose frames are normalized in another way than images: a model here
/// normalizes all pixels of a micro-batch alike. Without videos such a checkpoint trains as any other.
inline void check_frame_normalization(const image::Normalization& images, const image::Normalization& frames) {
  if (images == frames) return;
  throw data_error(
      "the checkpoint's image_mean, image_std or rescale_factor of videos differ from those of images, and the model "
      "here normalizes both alike; make them equal in its processor files, or train on images alone");
}

}  // namespace vlmtrain::models
