#include "image/mask_values.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "vlmtrain/base/error.h"
#include "vlmtrain/image/image_file.h"
#include "vlmtrain/image/mask.h"

namespace vlmtrain::image {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

/// Values and their numbers of pixels.
using Counts = std::vector<std::pair<int64_t, int64_t>>;

/// Returns samples with 1000 pixels of 0 and those of `counts`, with equal channels.
PngSamples make_samples(const Counts& counts, int64_t bits = 8, int64_t num_channels = 1) {
  std::vector<int64_t> pixels(1000, 0);
  for (const auto& [value, count] : counts) pixels.insert(pixels.end(), static_cast<size_t>(count), value);
  const int64_t bytes = bits == 16 ? 2 : 1;
  PngSamples samples{.pixels = InterleavedPixels({1, std::ssize(pixels)}, num_channels * bytes),
                     .num_channels = num_channels,
                     .bit_depth = bits};
  uint8_t* target = samples.pixels.samples.get();
  for (const int64_t value : pixels) {
    for (int64_t channel = 0; channel < num_channels; ++channel) {
      if (bytes == 2) *target++ = static_cast<uint8_t>(value >> 8);
      *target++ = static_cast<uint8_t>(value & 0xff);
    }
  }
  return samples;
}

/// Returns the plateau of a mask and a soft edge of different values with a pixel each.
Counts make_soft_edge(int64_t plateau_pixels, int64_t num_edge_values, int64_t range = 255) {
  Counts counts{{range, plateau_pixels}};
  for (int64_t i = 1; i <= num_edge_values; ++i) counts.emplace_back(i * range / (num_edge_values + 1), 1);
  return counts;
}

Counts make_labels(int64_t count, int64_t step = 1) {
  Counts counts;
  for (int64_t i = 1; i <= count; ++i) counts.emplace_back(i * step, 20);
  return counts;
}

TEST(MaskValues, SingleNonzeroValueIsTheMask) {
  for (const int64_t value : {1, 7, 128, 255}) {
    const auto rule = find_mask_rule(make_samples({{value, 50}}), "m.png");
    EXPECT_EQ(rule.threshold, 0) << value;
    EXPECT_FALSE(rule.notice) << value;
  }
  EXPECT_FALSE(find_mask_rule(make_samples({}), "m.png").notice) << "an empty one";
  EXPECT_FALSE(find_mask_rule(make_samples({{40000, 9}}, 16), "m.png").notice);
  EXPECT_FALSE(find_mask_rule(make_samples({{255, 9}}, 8, 3), "m.png").notice);
}

TEST(MaskValues, ThresholdsSoftEdgesAtHalfOfTheRange) {
  const auto expect_rule = [](const PngSamples& file, int64_t threshold, const char* description) {
    const auto rule = find_mask_rule(file, "m.png");
    EXPECT_EQ(rule.threshold, threshold) << description;
    ASSERT_TRUE(rule.notice) << description;
    EXPECT_THAT(rule.notice->kind, HasSubstr("soft edges")) << description;
    EXPECT_THAT(rule.notice->example, HasSubstr("m.png")) << description;
  };
  expect_rule(make_samples(make_soft_edge(200, 3)), 127, "shrunk by half with a box");
  expect_rule(make_samples(make_soft_edge(200, 75)), 127, "shrunk smoothly");
  expect_rule(make_samples(make_soft_edge(30, 38)), 127, "of a JPEG");
  expect_rule(make_samples(make_soft_edge(200, 75), 8, 3), 127, "gray as RGB");
  expect_rule(make_samples(make_soft_edge(200, 75, 65535), 16), 32767, "16 bits");
  expect_rule(make_samples(make_soft_edge(200, 75), 16), 127, "16 bits that were made of 8");
  PngSamples palette = make_samples(make_soft_edge(200, 75));
  palette.is_palette = true;
  expect_rule(palette, 127, "a palette of gray values");
}

TEST(MaskValues, AllLabelsAreMaskAndReported) {
  const auto expect_rule = [](const PngSamples& file, const char* number, const char* description) {
    const auto rule = find_mask_rule(file, "m.png");
    EXPECT_EQ(rule.threshold, 0) << description;
    ASSERT_TRUE(rule.notice) << description;
    EXPECT_THAT(rule.notice->kind, HasSubstr("several labels")) << description;
    EXPECT_THAT(rule.notice->example, AllOf(HasSubstr("m.png"), HasSubstr(number))) << description;
  };
  expect_rule(make_samples(make_labels(3)), "3 values", "gray");
  expect_rule(make_samples(make_labels(180)), "180 values", "cells");
  expect_rule(make_samples(make_labels(300), 16), "300 values", "cells in 16 bits");
  expect_rule(make_samples(make_labels(3, 80), 4), "3 values", "few bits");
  PngSamples palette = make_samples({{1, 100}, {15, 80}, {255, 40}});
  palette.is_palette = palette.has_non_identity_palette = true;
  expect_rule(palette, "3 entries", "PASCAL VOC, with its border");
  PngSamples colors = make_samples({{1, 3}}, 8, 3);
  colors.pixels.samples[0] = 128;
  expect_rule(colors, "2 colors", "RGB");
}

TEST(MaskValues, RejectsAmbiguousFiles) {
  const auto expect_rejected = [](const PngSamples& file, const char* description) {
    EXPECT_THAT([&] { find_mask_rule(file, "m.png"); },
                ThrowsMessage<UserError>(AllOf(HasSubstr("m.png"), HasSubstr("two values"), HasSubstr(description))));
  };
  expect_rejected(make_samples({{1, 600}, {2, 600}, {255, 250}}), "3 values");
  expect_rejected(make_samples({{15, 600}, {255, 100}}), "2 values");
  Counts image_values;
  for (int64_t value = 1; value < 230; ++value) image_values.emplace_back(value, 5);
  expect_rejected(make_samples(image_values), "229 gray values");
  PngSamples photograph = make_samples(make_labels(200), 8, 3);
  for (int64_t i = 0; i < 2000; ++i) photograph.pixels.samples[i] = static_cast<uint8_t>(i * 37 % 251);
  expect_rejected(photograph, "256 colors");
}

/// Decodes a file: without a value, pixels above half of the range are set, else those of the
/// value.
TEST(MaskValues, SelectsTheMaskPixelsOfAFile) {
  const at::Tensor row = at::zeros({1, 40}, at::kByte);
  row.narrow(1, 0, 20).fill_(255);
  for (int64_t i = 0; i < 10; ++i) row[0][20 + i] = 250 - 25 * i;
  io::MediaRef file("soft.png");
  file.bytes = std::make_shared<const std::string>(encode_png(row.expand({3, 1, 40}).contiguous()));
  const auto decoded = decode_mask_with_notice(file, std::nullopt);
  EXPECT_EQ(decoded.mask.sum().item<int64_t>(), 25) << "other values are 250, 225, 200, 175 and 150";
  EXPECT_TRUE(decoded.notice);
}

}  // namespace
}  // namespace vlmtrain::image
