#pragma once

#include <cstdint>

#include "vlmtrain/data/sample_shapes.h"

namespace vlmtrain::data {

/// How many samples have media of each kind. One may have several kinds.
struct MediaCounts {
  int64_t samples = 0;  ///< whose shapes are known
  int64_t with_images = 0;
  int64_t with_videos = 0;
  int64_t with_volumes = 0;
  int64_t with_masks = 0;
  int64_t without_media = 0;

  /// Whether there are samples, and none of them has an image, video or volume.
  bool has_no_media() const { return samples > 0 && without_media == samples; }
};

/// Of the samples from `begin` to below `end` whose shapes are known.
MediaCounts count_media(const SampleShapes& shapes, int64_t begin, int64_t end);
MediaCounts count_media(const SampleShapes& shapes);

}  // namespace vlmtrain::data
