#include "vlmtrain/image/overlay.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <memory>

#include "image/mask_rows.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/image/image_file.h"
#include "vlmtrain/image/mask.h"

namespace vlmtrain::image {
namespace {

constexpr std::array<uint8_t, 3> kOrange{255, 140, 0}, kGreen{0, 200, 0};

std::array<int, 3> get_color(const at::Tensor& image, int64_t y, int64_t x) {
  return {image[0][y][x].item<int>(), image[1][y][x].item<int>(), image[2][y][x].item<int>()};
}

TEST(MaskEdge, IsTheSetOfPixelsWithAnOutsideNeighbor) {
  const at::Tensor mask = make_mask({"111100", "111100", "111101", "111100", "000000"});
  EXPECT_EQ(to_rows(extract_mask_edge(mask)),
            (std::vector<std::string>{"111100", "100100", "100101", "111100", "000000"}));
  EXPECT_EQ(to_rows(extract_mask_edge(make_mask({"1", "1", "0"}))), (std::vector<std::string>{"1", "1", "0"}));
}

TEST(Overlay, FillsAndOutlines) {
  const at::Tensor image = at::full({3, 5, 6}, 100, at::kByte);
  const at::Tensor mask = make_mask({"000000", "011110", "011110", "011110", "000000"});
  const at::Tensor overlay = draw_masks(image, {{mask, kOrange, true}});
  EXPECT_EQ(get_color(overlay, 0, 0), (std::array<int, 3>{100, 100, 100}));
  EXPECT_EQ(get_color(overlay, 1, 1), (std::array<int, 3>{255, 140, 0}));
  EXPECT_EQ(get_color(overlay, 2, 2), (std::array<int, 3>{162, 116, 60}));
  EXPECT_TRUE(at::equal(image, at::full({3, 5, 6}, 100, at::kByte)));
}

TEST(Overlay, OutlineKeepsTheInterior) {
  const at::Tensor image = at::full({3, 5, 6}, 100, at::kByte);
  const at::Tensor predicted = at::full({5, 6}, 255, at::kByte);
  const at::Tensor ground_truth = make_mask({"000000", "011110", "011110", "011110", "000000"});
  const at::Tensor overlay = draw_masks(image, {{predicted, kOrange, true}, {ground_truth, kGreen, false}});
  EXPECT_EQ(get_color(overlay, 0, 0), (std::array<int, 3>{255, 140, 0}));
  EXPECT_EQ(get_color(overlay, 1, 1), (std::array<int, 3>{0, 200, 0}));
  EXPECT_EQ(get_color(overlay, 2, 2), (std::array<int, 3>{162, 116, 60}));
}

TEST(Overlay, FillsPredictionsAndOutlinesGroundTruth) {
  const at::Tensor image = at::full({3, 5, 6}, 100, at::kByte);
  const at::Tensor left_mask = make_mask({"111000", "111000", "111000", "000000", "000000"});
  const at::Tensor right_mask = make_mask({"000111", "000111", "000111", "000000", "000000"});
  const at::Tensor overlay = draw_mask_comparison(image, {left_mask}, {right_mask});
  EXPECT_EQ(get_color(overlay, 1, 1), (std::array<int, 3>{162, 116, 60})) << "orange";
  EXPECT_EQ(get_color(overlay, 1, 4), (std::array<int, 3>{100, 100, 100})) << "the inside of the true mask";
  EXPECT_EQ(get_color(overlay, 0, 4), (std::array<int, 3>{0, 210, 90})) << "green";
  EXPECT_NE(get_color(draw_mask_comparison(image, {left_mask, right_mask}, {}), 1, 4), get_color(overlay, 1, 1))
      << "a second mask has another color";
}

TEST(Overlay, OutlinesAreThickerInLargeImages) {
  const at::Tensor image = at::zeros({3, 600, 20}, at::kByte);
  const at::Tensor overlay = draw_masks(image, {{at::full({600, 20}, 1, at::kByte), kGreen, false}});
  for (const int64_t x : {0, 1, 18, 19}) EXPECT_EQ(get_color(overlay, 300, x)[1], 200) << x;
  for (const int64_t x : {2, 17}) EXPECT_EQ(get_color(overlay, 300, x)[1], 0) << x;
}

TEST(Overlay, RejectsAMaskOfAnotherSize) {
  EXPECT_THROW(draw_masks(at::zeros({3, 5, 6}, at::kByte), {{at::zeros({6, 5}, at::kByte), kGreen, true}}),
               InternalError);
}

TEST(EncodeMaskPng, RoundTrips) {
  const at::Tensor mask = make_mask({"0110", "1001", "0000"});
  io::MediaRef medium("mask.png");
  medium.bytes = std::make_shared<const std::string>(encode_mask_png(mask));
  EXPECT_TRUE(at::equal(decode_mask(medium, {}), mask));
  EXPECT_TRUE(at::equal(decode_mask(medium, 255), mask));
  EXPECT_EQ(get_color(decode_image(medium), 0, 1), (std::array<int, 3>{255, 255, 255}));
}

}  // namespace
}  // namespace vlmtrain::image
