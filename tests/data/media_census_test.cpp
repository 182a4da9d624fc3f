#include "vlmtrain/data/sample/statistics.h"

#include <gtest/gtest.h>

namespace vlmtrain::data {
namespace {

/// An image; a video; a volume and its masks; words; not known; an image and a video.
SampleShapes make_shapes() {
  SampleShapes shapes(6);
  shapes.set(0, {.tokens = 10, .num_media = 1});
  shapes.set(1, {.tokens = 10, .num_media = 1, .num_videos = 1});
  shapes.set(2, {.tokens = 10, .num_media = 1, .num_volumes = 1, .masks = 2});
  shapes.set(3, {.tokens = 10});
  shapes.set(5, {.tokens = 10, .num_media = 2, .num_videos = 1});
  return shapes;
}

TEST(MediaCounts, CountsSamplesByMedia) {
  const auto counts = count_media(make_shapes());
  EXPECT_EQ(counts.samples, 5);
  EXPECT_EQ(counts.with_images, 2);
  EXPECT_EQ(counts.with_videos, 2);
  EXPECT_EQ(counts.with_volumes, 1);
  EXPECT_EQ(counts.with_masks, 1);
  EXPECT_EQ(counts.without_media, 1);
  EXPECT_FALSE(counts.has_no_media());
}

TEST(MediaCounts, PartOfTheDataSetMayHaveNoMedia) {
  EXPECT_TRUE(count_media(make_shapes(), 3, 5).has_no_media());
  EXPECT_FALSE(count_media(make_shapes(), 3, 6).has_no_media());
  EXPECT_FALSE(count_media(make_shapes(), 4, 5).has_no_media()) << "nothing is known of it";
}

}  // namespace
}  // namespace vlmtrain::data
