#include "vlmtrain/data/media_census.h"

#include <gtest/gtest.h>

namespace vlmtrain::data {
namespace {

/// An image; a video; a volume and its masks; words; not known; an image and a video.
SampleShapes shapes() {
  SampleShapes all(6);
  all.set(0, {.tokens = 10, .images = 1});
  all.set(1, {.tokens = 10, .images = 1, .videos = 1});
  all.set(2, {.tokens = 10, .images = 1, .volumes = 1, .masks = 2});
  all.set(3, {.tokens = 10});
  all.set(5, {.tokens = 10, .images = 2, .videos = 1});
  return all;
}

TEST(MediaCensus, CountsSamplesByTheirMedia) {
  const auto census = media_census(shapes());
  EXPECT_EQ(census.samples, 5);
  EXPECT_EQ(census.with_images, 2);
  EXPECT_EQ(census.with_videos, 2);
  EXPECT_EQ(census.with_volumes, 1);
  EXPECT_EQ(census.with_masks, 1);
  EXPECT_EQ(census.without_media, 1);
  EXPECT_FALSE(census.is_blind());
}

TEST(MediaCensus, APartOfTheDataSetMayBeBlind) {
  EXPECT_TRUE(media_census(shapes(), 3, 5).is_blind());
  EXPECT_FALSE(media_census(shapes(), 3, 6).is_blind());
  EXPECT_FALSE(media_census(shapes(), 4, 5).is_blind()) << "nothing is known of it";
}

}  // namespace
}  // namespace vlmtrain::data
