#include "vlmtrain/data/sample/sample_shape.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/hash.h"
#include "vlmtrain/data/sample/sample.h"

namespace vlmtrain::data {

namespace {

using testing::ElementsAre;

/// Two images in native resolution with 2 × 2 patches per token: 12 + 8 tokens, and 10 of text.
SampleShape make_native_shape() {
  return {.tokens = 30,
          .label_tokens = 4,
          .image_tokens = 20,
          .num_images = 2,
          .pixel_rows = 80,
          .row = {.height = 28, .width = 14},
          .patch_grids = {{1, 6, 8}, {2, 4, 4}},
          .has_position_axes = true};
}

TEST(SampleShape, RoundTripsThroughAMetaSample) {
  EXPECT_EQ(get_sample_shape(make_meta_sample(make_native_shape())), make_native_shape());
  SampleShape with_video = make_native_shape();
  with_video.num_images = 1;
  with_video.num_videos = 1;
  with_video.video_frames = 4;
  EXPECT_EQ(get_sample_shape(make_meta_sample(with_video)), with_video);
  const SampleShape tiles{.tokens = 20,
                          .label_tokens = 3,
                          .image_tokens = 8,
                          .num_images = 1,
                          .pixel_rows = 2,
                          .row = {.height = 4, .width = 4}};
  EXPECT_EQ(get_sample_shape(make_meta_sample(tiles)), tiles);
  EXPECT_TRUE(make_meta_sample(tiles).position_ids.empty());
  EXPECT_EQ(make_meta_sample(make_native_shape()).position_ids.size(), 90);
}

TEST(SampleShape, KeepsDtypeAndAxesOfVolumes) {
  SampleShape volumes{.tokens = 20,
                      .label_tokens = 3,
                      .image_tokens = 8,
                      .pixel_rows = 2,
                      .row = {.dtype = at::kShort, .channels = 1, .depth = 6, .height = 5, .width = 4},
                      .num_volumes = 2};
  const Sample sample = make_meta_sample(volumes);
  EXPECT_EQ(sample.pixel_values.scalar_type(), at::kShort);
  EXPECT_EQ(sample.pixel_values.sizes(), (at::IntArrayRef{2, 1, 6, 5, 4}));
  EXPECT_EQ(sample.pixel_values.nbytes(), 2U * 6 * 5 * 4 * 2);
  EXPECT_EQ(volumes.row.bytes(), 6 * 5 * 4 * 2);
  EXPECT_EQ(get_sample_shape(sample), volumes);
  EXPECT_EQ(describe_media(volumes), "2 volumes of 6x5x4");
  volumes.num_images = 1;
  EXPECT_EQ(describe_media(volumes), "1 image and 2 volumes of 6x5x4");
  SampleShape series = volumes;
  series.num_images = 0;
  series.num_volumes = 1;
  EXPECT_EQ(describe_media(series), "1 volume in 2 grids of 6x5x4");
}

TEST(SampleShape, KeepsNumberAndSizeOfMasks) {
  const SampleShape mask_shape{.tokens = 20,
                               .label_tokens = 3,
                               .image_tokens = 8,
                               .num_images = 2,
                               .pixel_rows = 2,
                               .row = {.height = 4, .width = 4},
                               .masks = 3,
                               .num_images_with_masks = 2,
                               .mask_image_size = 32};
  const Sample sample = make_meta_sample(mask_shape);
  EXPECT_EQ(get_sample_shape(sample), mask_shape);
  EXPECT_EQ(sample.masks.token_positions, (std::vector<int64_t>{17, 18, 19}));
  EXPECT_EQ(sample.masks.image_indices, (std::vector<int64_t>{0, 1, 1}));
  EXPECT_EQ(sample.masks.count_valid_pixels(), 3 * 32 * 32);
  EXPECT_EQ(mask_shape.mask_bytes(), (2 * 3 + 3) * 32 * 32);
  EXPECT_EQ(describe_media(mask_shape), "2 images and 3 masks");
}

TEST(SampleShape, CountsMediaByKind) {
  Sample sample;
  sample.add_medium(MediaKind::kImage);
  sample.add_medium(MediaKind::kVideo, 4);
  sample.add_medium(MediaKind::kVolume);
  sample.add_medium(MediaKind::kVideo, 3);
  EXPECT_EQ(describe_media(get_sample_shape(sample)), "1 image and 2 videos of 7 frames and 1 volume");
}

TEST(DescribeMedia, DistinguishesVideosFromImages) {
  SampleShape shape;
  EXPECT_EQ(describe_media(shape), "no image");
  shape.num_images = 1;
  EXPECT_EQ(describe_media(shape), "1 image");
  shape.num_images = 0;
  shape.num_videos = 1;
  shape.video_frames = 16;
  EXPECT_EQ(describe_media(shape), "1 video of 16 frames");
  shape.num_images = 2;
  shape.num_videos = 2;
  EXPECT_EQ(describe_media(shape), "2 images and 2 videos of 16 frames");
}

TEST(ScalePixels, KeepsWholeTiles) {
  const SampleShape tiles{.tokens = 50,
                          .label_tokens = 3,
                          .image_tokens = 40,
                          .num_images = 2,
                          .pixel_rows = 10,
                          .row = {.height = 4, .width = 4}};
  const auto smaller = scale_pixels(tiles, 0.31);
  EXPECT_EQ(smaller.pixel_rows, 3);
  EXPECT_EQ(smaller.image_tokens, 12);
  EXPECT_EQ(smaller.tokens, 22);
  EXPECT_EQ(scale_pixels(tiles, 0.001).pixel_rows, 1);
  EXPECT_EQ(scale_pixels(tiles, 1), tiles);
}

TEST(ScalePixels, KeepsRowsOfAGridThatFillTokens) {
  const auto half = scale_pixels(make_native_shape(), 0.5);
  EXPECT_EQ(half.patch_grids, (std::vector<PatchGrid>{{1, 4, 8}, {2, 2, 4}}));
  EXPECT_EQ(half.pixel_rows, 48);
  EXPECT_EQ(half.image_tokens, 12);
  EXPECT_EQ(half.tokens, 22);
  EXPECT_EQ(scale_pixels(make_native_shape(), 1), make_native_shape());
}

TEST(ScalePixels, LeavesTextUnchanged) {
  const SampleShape text{.tokens = 9, .label_tokens = 2};
  EXPECT_EQ(scale_pixels(text, 0.1), text);
}

/// Returns shapes with few kinds of media, so that several samples have equal media.
SampleShape make_shape(RandomStream& random) {
  const auto below = [&random](uint64_t end) { return static_cast<int64_t>(random.uniform(end)); };
  SampleShape shape{.tokens = 100 + below(50), .label_tokens = below(50), .num_images = below(3)};
  shape.pixel_rows = shape.num_images * (1 + below(2));
  shape.row = {.height = shape.num_images > 0 ? 28 : 0, .width = shape.num_images > 0 ? 14 + 14 * below(2) : 0};
  for (int64_t i = 0; i < shape.num_images; ++i)
    shape.patch_grids.push_back({.frames = 1, .rows = 2 + below(2), .columns = 2});
  return shape;
}

TEST(SampleShapesTest, ReturnsStoredShapes) {
  RandomStream random(3);
  constexpr int64_t kSamples = 500;
  SampleShapes shapes(kSamples);
  std::vector<std::optional<SampleShape>> expected(kSamples);
  for (int i = 0; i < 1000; ++i) {
    const auto index = static_cast<int64_t>(random.uniform(kSamples));
    auto& shape = expected[static_cast<size_t>(index)];
    if (random.uniform(4) == 0) {
      shapes.mark_unknown(index);
      shape.reset();
    } else {
      shape = make_shape(random);
      shapes.set(index, *shape);
    }
  }
  int64_t known = 0;
  for (int64_t index = 0; index < kSamples; ++index) {
    const auto& shape = expected[static_cast<size_t>(index)];
    EXPECT_EQ(shapes[index], shape);
    EXPECT_EQ(shapes.is_known(index), shape.has_value());
    known += shape ? 1 : 0;
  }
  EXPECT_EQ(shapes.num_known_shapes(), known);
  SampleShapes copy = shapes;
  EXPECT_TRUE(copy == shapes);
  copy.push_back(std::nullopt);
  EXPECT_FALSE(copy == shapes);
}

TEST(SampleShapesTest, ThrowsForUnknownShapes) {
  EXPECT_THROW(SampleShapes(3).at(1), InternalError);
  EXPECT_THROW(SampleShapes(3).set(1, {.tokens = int64_t{1} << 31U}), InternalError);
}

TEST(FindLargestTest, ReturnsTheLargestFirstAndKeepsOrderOfEqualOnes) {
  SampleShapes shapes;
  for (const int64_t tokens : {5, 9, 2, 9, 7}) shapes.push_back(SampleShape{.tokens = tokens});
  shapes.push_back(std::nullopt);
  EXPECT_THAT(find_largest_samples(shapes, get_token_sort_key, 3), ElementsAre(1, 3, 4));
  EXPECT_THAT(find_largest_samples(shapes, get_token_sort_key, 9), ElementsAre(1, 3, 4, 0, 2));
  EXPECT_THAT(find_largest_samples(shapes, get_token_sort_key, 1), ElementsAre(1));
  EXPECT_THAT(find_largest_samples(shapes, get_token_sort_key, 0), ElementsAre());
}

}  // namespace

}  // namespace vlmtrain::data
