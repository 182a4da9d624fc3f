#include "vlmtrain/data/media_census.h"

namespace vlmtrain::data {

MediaCensus media_census(const SampleShapes& shapes, int64_t begin, int64_t end) {
  MediaCensus census;
  for (int64_t index = begin; index < end; ++index) {
    const SampleShape* const media = shapes.media_of(index);
    if (media == nullptr) continue;
    ++census.samples;
    census.with_images += media->images > media->videos + media->volumes ? 1 : 0;
    census.with_videos += media->videos > 0 ? 1 : 0;
    census.with_volumes += media->volumes > 0 ? 1 : 0;
    census.with_masks += media->masks > 0 ? 1 : 0;
    census.without_media += media->images == 0 ? 1 : 0;
  }
  return census;
}

MediaCensus media_census(const SampleShapes& shapes) {
  return media_census(shapes, 0, shapes.size());
}

}  // namespace vlmtrain::data
