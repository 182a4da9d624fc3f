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
          .pixel_rows = 80,
          .row = {.height = 28, .width = 14},
          .grids = {{1, 6, 8}, {2, 4, 4}}};
}

TEST(SampleShape, OfASampleMadeFromItIsTheSame) {
  EXPECT_EQ(shape_of(sample_of(native_shape())), native_shape());
  SampleShape with_video = native_shape();
  with_video.videos = 1;
  with_video.video_frames = 4;
  EXPECT_EQ(shape_of(sample_of(with_video)), with_video);
  const SampleShape tiles{.tokens = 20,
                          .label_tokens = 3,
                          .image_tokens = 8,
                          .images = 1,
                          .pixel_rows = 2,
                          .row = {.height = 4, .width = 4}};
  EXPECT_EQ(shape_of(sample_of(tiles)), tiles);
  EXPECT_TRUE(sample_of(tiles).position_ids.empty());
  EXPECT_EQ(sample_of(native_shape()).position_ids.size(), 90);
}

TEST(SampleShape, OfAVolumeKeepsItsTypeAndAxes) {
  SampleShape volumes{.tokens = 20,
                      .label_tokens = 3,
                      .image_tokens = 8,
                      .images = 2,
                      .pixel_rows = 2,
                      .row = {.dtype = at::kShort, .channels = 1, .depth = 6, .height = 5, .width = 4},
                      .volumes = 2};
  const Sample sample = sample_of(volumes);
  EXPECT_EQ(sample.pixel_values.scalar_type(), at::kShort);
  EXPECT_EQ(sample.pixel_values.sizes(), (at::IntArrayRef{2, 1, 6, 5, 4}));
  EXPECT_EQ(sample.pixel_values.nbytes(), 2U * 6 * 5 * 4 * 2);
  EXPECT_EQ(volumes.row.bytes(), 6 * 5 * 4 * 2);
  EXPECT_EQ(shape_of(sample), volumes);
  EXPECT_EQ(media_words(volumes), "2 volumes of 6x5x4");
  volumes.images = 3;
  EXPECT_EQ(media_words(volumes), "1 image and 2 volumes of 6x5x4");
  SampleShape series = volumes;
  series.images = series.volumes = 1;
  EXPECT_EQ(media_words(series), "1 volume in 2 grids of 6x5x4");
}

TEST(SampleShape, OfMasksKeepsHowManyAndHowLarge) {
  const SampleShape drawn{.tokens = 20,
                          .label_tokens = 3,
                          .image_tokens = 8,
                          .images = 2,
                          .pixel_rows = 2,
                          .row = {.height = 4, .width = 4},
                          .masks = 3,
                          .mask_pictures = 2,
                          .mask_side = 32};
  const Sample sample = sample_of(drawn);
  EXPECT_EQ(shape_of(sample), drawn);
  EXPECT_EQ(sample.masks.token_positions, (std::vector<int64_t>{17, 18, 19}));
  EXPECT_EQ(sample.masks.pictures, (std::vector<int64_t>{0, 1, 1}));
  EXPECT_EQ(sample.masks.filled_pixels(), 3 * 32 * 32);
  EXPECT_EQ(drawn.mask_bytes(), (2 * 3 + 3) * 32 * 32);
  EXPECT_EQ(media_words(drawn), "2 images and 3 masks");
}

TEST(SampleShape, CountsMediaByTheirKind) {
  Sample sample;
  sample.count(MediumKind::kPicture);
  sample.count(MediumKind::kVideo, 4);
  sample.count(MediumKind::kVolume);
  sample.count(MediumKind::kVideo, 3);
  EXPECT_EQ(media_words(shape_of(sample)), "1 image and 2 videos of 7 frames and 1 volume");
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
  const SampleShape tiles{.tokens = 50,
                          .label_tokens = 3,
                          .image_tokens = 40,
                          .images = 2,
                          .pixel_rows = 10,
                          .row = {.height = 4, .width = 4}};
  const auto fewer = with_share_of_pixels(tiles, 0.31);
  EXPECT_EQ(fewer.pixel_rows, 3);
  EXPECT_EQ(fewer.image_tokens, 12);
  EXPECT_EQ(fewer.tokens, 22);
  EXPECT_EQ(with_share_of_pixels(tiles, 0.001).pixel_rows, 1);
  EXPECT_EQ(with_share_of_pixels(tiles, 1), tiles);
}

TEST(WithShareOfPixels, TakesRowsOfAGridThatFillTokens) {
  const auto half = with_share_of_pixels(native_shape(), 0.5);
  EXPECT_EQ(half.grids, (std::vector<PatchGrid>{{1, 4, 8}, {2, 2, 4}}));
  EXPECT_EQ(half.pixel_rows, 48);
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
