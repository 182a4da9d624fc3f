#include "vlmtrain/data/shape.h"

#include <gtest/gtest.h>

namespace vlmtrain::data {
namespace {

/// Two images of native resolution, 2 × 2 patches a token: 12 + 8 tokens, and 10 of text.
SampleShape native_shape() {
  return {.tokens = 30,
          .label_tokens = 4,
          .image_tokens = 20,
          .images = 2,
          .tiles = 80,
          .tile_height = 28,
          .tile_width = 14,
          .grids = {{1, 6, 8}, {2, 4, 4}}};
}

TEST(SampleShape, OfASampleMadeFromItIsTheSame) {
  EXPECT_EQ(shape_of(sample_of(native_shape())), native_shape());
  SampleShape with_video = native_shape();
  with_video.videos = 1;
  with_video.video_frames = 4;
  EXPECT_EQ(shape_of(sample_of(with_video)), with_video);
  const SampleShape tiles{
      .tokens = 20, .label_tokens = 3, .image_tokens = 8, .images = 1, .tiles = 2, .tile_height = 4, .tile_width = 4};
  EXPECT_EQ(shape_of(sample_of(tiles)), tiles);
  EXPECT_TRUE(sample_of(tiles).position_ids.empty());
  EXPECT_EQ(sample_of(native_shape()).position_ids.size(), 90);
}

TEST(MediaWords, TellVideosFromImages) {
  SampleShape shape;
  EXPECT_EQ(media_words(shape), "no image");
  shape.images = 1;
  EXPECT_EQ(media_words(shape), "1 image");
  shape.videos = 1;
  shape.video_frames = 16;
  EXPECT_EQ(media_words(shape), "1 video of 16 frames");
  shape.images = 4;
  shape.videos = 2;
  EXPECT_EQ(media_words(shape), "2 images and 2 videos of 16 frames");
}

TEST(WithShareOfPixels, TakesWholeTiles) {
  const SampleShape tiles{
      .tokens = 50, .label_tokens = 3, .image_tokens = 40, .images = 2, .tiles = 10, .tile_height = 4, .tile_width = 4};
  const auto fewer = with_share_of_pixels(tiles, 0.31);
  EXPECT_EQ(fewer.tiles, 3);
  EXPECT_EQ(fewer.image_tokens, 12);
  EXPECT_EQ(fewer.tokens, 22);
  EXPECT_EQ(with_share_of_pixels(tiles, 0.001).tiles, 1);
  EXPECT_EQ(with_share_of_pixels(tiles, 1), tiles);
}

TEST(WithShareOfPixels, TakesRowsOfAGridThatFillTokens) {
  const auto half = with_share_of_pixels(native_shape(), 0.5);
  EXPECT_EQ(half.grids, (std::vector<TileGrid>{{1, 4, 8}, {2, 2, 4}}));
  EXPECT_EQ(half.tiles, 48);
  EXPECT_EQ(half.image_tokens, 12);
  EXPECT_EQ(half.tokens, 22);
  EXPECT_EQ(with_share_of_pixels(native_shape(), 1), native_shape());
}

TEST(WithShareOfPixels, LeavesTextAlone) {
  const SampleShape text{.tokens = 9, .label_tokens = 2};
  EXPECT_EQ(with_share_of_pixels(text, 0.1), text);
}

}  // namespace
}  // namespace vlmtrain::data
