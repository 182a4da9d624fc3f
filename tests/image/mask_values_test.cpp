#include "image/mask_values.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "vlmtrain/base/error.h"
#include "vlmtrain/image/encode.h"
#include "vlmtrain/image/mask.h"

namespace vlmtrain::image {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

/// Values, each with its number of pixels.
using Counts = std::vector<std::pair<int64_t, int64_t>>;

/// A file with 1000 pixels of 0 and those of `counts`, `channels` alike.
PngSamples file_of(const Counts& counts, int64_t bits = 8, int64_t channels = 1) {
  std::vector<int64_t> pixels(1000, 0);
  for (const auto& [value, count] : counts) pixels.insert(pixels.end(), static_cast<size_t>(count), value);
  const int64_t bytes = bits == 16 ? 2 : 1;
  PngSamples samples{
      .rows = StoredPixels({1, std::ssize(pixels)}, channels * bytes), .channels = channels, .bits = bits};
  uint8_t* to = samples.rows.samples.get();
  for (const int64_t value : pixels) {
    for (int64_t channel = 0; channel < channels; ++channel) {
      if (bytes == 2) *to++ = static_cast<uint8_t>(value >> 8);
      *to++ = static_cast<uint8_t>(value & 0xff);
    }
  }
  return samples;
}

/// The plateau of a mask and an edge of so many values, a pixel each.
Counts soft(int64_t plateau, int64_t edge_values, int64_t range = 255) {
  Counts counts{{range, plateau}};
  for (int64_t i = 1; i <= edge_values; ++i) counts.emplace_back(i * range / (edge_values + 1), 1);
  return counts;
}

Counts labels(int64_t count, int64_t step = 1) {
  Counts counts;
  for (int64_t i = 1; i <= count; ++i) counts.emplace_back(i * step, 20);
  return counts;
}

TEST(MaskValues, OneValueBesideZeroIsTheMask) {
  for (const int64_t value : {1, 7, 128, 255}) {
    const auto rule = find_mask_rule(file_of({{value, 50}}), "m.png");
    EXPECT_EQ(rule.above, 0) << value;
    EXPECT_FALSE(rule.notice) << value;
  }
  EXPECT_FALSE(find_mask_rule(file_of({}), "m.png").notice) << "an empty one";
  EXPECT_FALSE(find_mask_rule(file_of({{40000, 9}}, 16), "m.png").notice);
  EXPECT_FALSE(find_mask_rule(file_of({{255, 9}}, 8, 3), "m.png").notice);
}

TEST(MaskValues, SoftEdgesAreCutAtHalfOfTheRangeAndReported) {
  const auto check = [](const PngSamples& file, int64_t above, const char* what) {
    const auto rule = find_mask_rule(file, "m.png");
    EXPECT_EQ(rule.above, above) << what;
    ASSERT_TRUE(rule.notice) << what;
    EXPECT_THAT(rule.notice->kind, HasSubstr("soft edges")) << what;
    EXPECT_THAT(rule.notice->example, HasSubstr("m.png")) << what;
  };
  check(file_of(soft(200, 3)), 127, "shrunk by half with a box");
  check(file_of(soft(200, 75)), 127, "shrunk smoothly");
  check(file_of(soft(30, 38)), 127, "of a JPEG");
  check(file_of(soft(200, 75), 8, 3), 127, "gray as RGB");
  check(file_of(soft(200, 75, 65535), 16), 32767, "16 bits");
  check(file_of(soft(200, 75), 16), 127, "16 bits that were made of 8");
  PngSamples palette = file_of(soft(200, 75));
  palette.is_palette = true;
  check(palette, 127, "a palette of gray values");
}

TEST(MaskValues, LabelsAreAllMaskAndReported) {
  const auto check = [](const PngSamples& file, const char* number, const char* what) {
    const auto rule = find_mask_rule(file, "m.png");
    EXPECT_EQ(rule.above, 0) << what;
    ASSERT_TRUE(rule.notice) << what;
    EXPECT_THAT(rule.notice->kind, HasSubstr("several labels")) << what;
    EXPECT_THAT(rule.notice->example, AllOf(HasSubstr("m.png"), HasSubstr(number))) << what;
  };
  check(file_of(labels(3)), "3 values", "gray");
  check(file_of(labels(180)), "180 values", "cells");
  check(file_of(labels(300), 16), "300 values", "cells in 16 bits");
  check(file_of(labels(3, 80), 4), "3 values", "few bits");
  PngSamples palette = file_of({{1, 100}, {15, 80}, {255, 40}});
  palette.is_palette = palette.has_colored_palette = true;
  check(palette, "3 entries", "PASCAL VOC, with its border");
  PngSamples colors = file_of({{1, 3}}, 8, 3);
  colors.rows.samples[0] = 128;
  check(colors, "2 colors", "RGB");
}

TEST(MaskValues, WhatMayBeNoiseLabelsOrAnImageIsRefused) {
  const auto refuses = [](const PngSamples& file, const char* what) {
    EXPECT_THAT([&] { find_mask_rule(file, "m.png"); },
                ThrowsMessage<UserError>(AllOf(HasSubstr("m.png"), HasSubstr("two values"), HasSubstr(what))));
  };
  refuses(file_of({{1, 600}, {2, 600}, {255, 250}}), "3 values");
  refuses(file_of({{15, 600}, {255, 100}}), "2 values");
  Counts image;
  for (int64_t value = 1; value < 230; ++value) image.emplace_back(value, 5);
  refuses(file_of(image), "229 gray values");
  PngSamples photograph = file_of(labels(200), 8, 3);
  for (int64_t i = 0; i < 2000; ++i) photograph.rows.samples[i] = static_cast<uint8_t>(i * 37 % 251);
  refuses(photograph, "256 colors");
}

/// Through a file: the pixels above half are mask, and of a named value only those that have it.
TEST(MaskValues, DecideWhichPixelsOfAFileAreMask) {
  const at::Tensor row = at::zeros({1, 40}, at::kByte);
  row.narrow(1, 0, 20).fill_(255);
  for (int64_t i = 0; i < 10; ++i) row[0][20 + i] = 250 - 25 * i;
  io::Medium file("soft.png");
  file.bytes = std::make_shared<const std::string>(encode_png(row.expand({3, 1, 40}).contiguous()));
  const auto decoded = decode_mask_with_notice(file, std::nullopt);
  EXPECT_EQ(decoded.mask.sum().item<int64_t>(), 25) << "250, 225, 200, 175 and 150 besides";
  EXPECT_TRUE(decoded.notice);
}

}  // namespace
}  // namespace vlmtrain::image
