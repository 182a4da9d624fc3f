#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/rot90.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "image/mask_rows.h"
#include "image/reference_files.h"
#include "vlmtrain/image/mask.h"
#include "vlmtrain/image/pixel_transforms.h"

namespace vlmtrain::image {
namespace {

at::Tensor make_noise_image(int64_t height, int64_t width) {
  at::Tensor image = at::empty({3, height, width}, at::kByte);
  std::mt19937 random(7);
  for (int64_t i = 0; i < image.numel(); ++i) image.mutable_data_ptr<uint8_t>()[i] = random() % 256;
  return image;
}

at::Tensor make_blob_mask(int64_t height, int64_t width) {
  at::Tensor mask = at::zeros({height, width}, at::kByte);
  mask.slice(0, height / 3, height / 2).slice(1, width / 5, width / 2).fill_(1);
  mask.slice(0, height / 3, height - height / 4).slice(1, width / 5, width / 4).fill_(1);
  return mask;
}

TEST(Augment, ReturnsTheSameTensorWithoutChanges) {
  const at::Tensor image = make_noise_image(5, 7), mask = make_blob_mask(5, 7);
  EXPECT_TRUE(augment_image(image, {}).is_same(image));
  EXPECT_TRUE(augment_mask(mask, {}).is_same(mask));
  EXPECT_TRUE(augment_mask(mask, {.brightness_factor = 1.5}).is_same(mask));
  EXPECT_FALSE(AugmentSettings{}.is_enabled());
  EXPECT_EQ(sample_augmentation({}, 123), Augmentation{});
}

TEST(Augment, FlippingTwiceIsTheIdentity) {
  const at::Tensor image = make_noise_image(5, 7), mask = make_blob_mask(5, 7);
  const Augmentation flip{.is_horizontally_flipped = true};
  EXPECT_TRUE(at::equal(augment_image(image, flip), image.flip({2})));
  EXPECT_TRUE(at::equal(augment_image(augment_image(image, flip), flip), image));
  EXPECT_TRUE(at::equal(augment_mask(augment_mask(mask, flip), flip), mask));
  EXPECT_FALSE(at::equal(augment_mask(mask, flip), mask));
}

TEST(Augment, QuarterTurnsMovePixels) {
  for (const int64_t side : {8, 9}) {
    const at::Tensor image = make_noise_image(side, side), mask = make_blob_mask(side, side);
    for (const int num_quarter_turns : {-1, 1, 2, 3}) {
      const Augmentation rotation{.rotation_degrees = 90.0 * num_quarter_turns};
      EXPECT_TRUE(at::equal(augment_image(image, rotation), at::rot90(image, num_quarter_turns, {1, 2})))
          << side << ", " << num_quarter_turns;
      EXPECT_TRUE(at::equal(augment_mask(mask, rotation), at::rot90(mask, num_quarter_turns, {0, 1})))
          << side << ", " << num_quarter_turns;
    }
  }
  const at::Tensor wide_image = make_noise_image(4, 9);
  EXPECT_TRUE(at::equal(augment_image(wide_image, {.rotation_degrees = 180}), wide_image.flip({1, 2})));
}

TEST(Augment, FlipsBeforeItRotates) {
  const at::Tensor image = make_noise_image(8, 8), mask = make_blob_mask(8, 8);
  const Augmentation flip_and_rotation{.is_horizontally_flipped = true, .rotation_degrees = 90};
  EXPECT_TRUE(at::equal(augment_image(image, flip_and_rotation), at::rot90(image.flip({2}), 1, {1, 2})));
  EXPECT_TRUE(at::equal(augment_mask(mask, flip_and_rotation), at::rot90(mask.flip({1}), 1, {0, 1})));
}

/// The augmented image of a mask equals the augmented mask up to rounding, since both sample the
/// same positions.
TEST(Augment, MaskAndImageMoveTogether) {
  const at::Tensor mask = make_blob_mask(60, 83);
  const at::Tensor image = at::stack({mask, mask, mask}).mul_(255);
  for (const double degrees : {-33.0, -7.5, 0.4, 12.0, 45.0, 81.0}) {
    for (const bool flip : {false, true}) {
      const Augmentation augmentation{.is_horizontally_flipped = flip, .rotation_degrees = degrees};
      const at::Tensor augmented = augment_mask(mask, augmentation);
      const at::Tensor thresholded = augment_image(image, augmentation)[0].ge(128).to(at::kByte);
      const at::Tensor differs = augmented.ne(thresholded);
      // Inside of the edges of both masks, and outside of them, nothing differs.
      const at::Tensor near_edge =
          extract_mask_edge(augmented).logical_or(extract_mask_edge(augmented.eq(0).to(at::kByte)));
      EXPECT_FALSE(differs.logical_and(near_edge.logical_not()).any().item<bool>()) << degrees;
      EXPECT_NEAR(augmented.sum().item<double>(), mask.sum().item<double>(), 30) << degrees;
    }
  }
}

TEST(Augment, FillsOutsideWithBlack) {
  const at::Tensor white = at::full({3, 20, 20}, 255, at::kByte);
  const at::Tensor rotated = augment_image(white, {.rotation_degrees = 45});
  EXPECT_EQ(rotated[0][0][0].item<int>(), 0);
  EXPECT_EQ(rotated[2][10][10].item<int>(), 255);
  EXPECT_EQ(augment_mask(white[0], {.rotation_degrees = 45})[19][19].item<int>(), 0);
}

TEST(Augment, BrightnessIsRoundedAndClamped) {
  const at::Tensor image = at::empty({3, 1, 2}, at::kByte);
  for (int64_t i = 0; i < 6; ++i) image.mutable_data_ptr<uint8_t>()[i] = static_cast<uint8_t>(50 * i + 1);
  const at::Tensor bright = augment_image(image, {.brightness_factor = 1.5}),
                   dark = augment_image(image, {.brightness_factor = 0.5});
  const std::vector<int> expected_bright{2, 77, 152, 227, 255, 255}, expected_dark{1, 26, 51, 76, 101, 126};
  for (int64_t i = 0; i < 6; ++i) {
    EXPECT_EQ(bright.const_data_ptr<uint8_t>()[i], expected_bright[i]);
    EXPECT_EQ(dark.const_data_ptr<uint8_t>()[i], expected_dark[i]);
  }
}

TEST(Augment, DependsOnlyOnTheSeed) {
  const AugmentSettings settings{
      .horizontal_flip_probability = 0.5, .max_rotation_degrees = 10, .max_brightness_change = 0.2};
  EXPECT_EQ(sample_augmentation(settings, 42), sample_augmentation(settings, 42));
  EXPECT_NE(sample_augmentation(settings, 42), sample_augmentation(settings, 43));
  EXPECT_EQ(sample_augmentation(settings, 42).rotation_degrees,
            sample_augmentation({.max_rotation_degrees = 10}, 42).rotation_degrees);
}

TEST(Augment, DrawsFromTheRangesOfTheSettings) {
  const AugmentSettings settings{
      .horizontal_flip_probability = 0.25, .max_rotation_degrees = 10, .max_brightness_change = 0.2};
  int flips = 0;
  double lowest = 0, highest = 0, darkest = 1, brightest = 1;
  constexpr int kDraws = 4000;
  for (uint64_t seed = 0; seed < kDraws; ++seed) {
    const Augmentation augmentation = sample_augmentation(settings, seed);
    flips += augmentation.is_horizontally_flipped ? 1 : 0;
    lowest = std::min(lowest, augmentation.rotation_degrees);
    highest = std::max(highest, augmentation.rotation_degrees);
    darkest = std::min(darkest, augmentation.brightness_factor);
    brightest = std::max(brightest, augmentation.brightness_factor);
  }
  EXPECT_NEAR(flips, kDraws / 4, 100);
  EXPECT_NEAR(lowest, -10, 0.1);
  EXPECT_NEAR(highest, 10, 0.1);
  EXPECT_NEAR(darkest, 0.8, 0.01);
  EXPECT_NEAR(brightest, 1.2, 0.01);
}

/// Numbers and bytes that must be equal on all machines.
TEST(Augment, IsTheSameOnEveryMachine) {
  const Augmentation augmentation = sample_augmentation(
      {.horizontal_flip_probability = 0.5, .max_rotation_degrees = 10, .max_brightness_change = 0.2}, 42);
  EXPECT_EQ(augmentation.rotation_degrees * 0x1p24, -7477639);
  EXPECT_EQ(augmentation.brightness_factor * 0x1p24, 19110908);
  EXPECT_EQ(compute_crc32(
                augment_image(make_noise_image(31, 47),
                              {.is_horizontally_flipped = true, .rotation_degrees = 12.5, .brightness_factor = 1.1})),
            "a481cec9");
}

}  // namespace
}  // namespace vlmtrain::image
