#include "vlmtrain/data/media_census.h"

namespace vlmtrain::data {

MediaCounts count_media(const SampleShapes& shapes, int64_t begin, int64_t end) {
  MediaCounts counts;
  for (int64_t index = begin; index < end; ++index) {
    const SampleShape* const media_shape = shapes.find_media(index);
    if (media_shape == nullptr) continue;
    ++counts.samples;
    counts.with_images += media_shape->num_media > media_shape->num_videos + media_shape->num_volumes ? 1 : 0;
    counts.with_videos += media_shape->num_videos > 0 ? 1 : 0;
    counts.with_volumes += media_shape->num_volumes > 0 ? 1 : 0;
    counts.with_masks += media_shape->masks > 0 ? 1 : 0;
    counts.without_media += media_shape->num_media == 0 ? 1 : 0;
  }
  return counts;
}

MediaCounts count_media(const SampleShapes& shapes) {
  return count_media(shapes, 0, shapes.size());
}

}  // namespace vlmtrain::data
