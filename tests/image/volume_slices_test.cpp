#include "vlmtrain/image/volume_slices.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "image/nifti_file.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::image {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

/// 3 × 4 × 5 voxels, right, front and top: the value is 25 · right + 5 · front + top.
io::Medium boxes(std::array<double, 3> spacing = {1, 1, 1}) {
  NiftiFile file(NiftiFile::k1, {3, 4, 5}, 2);
  file.set_sform(1, {spacing[0], 0, 0, 0, spacing[1], 0, 0, 0, spacing[2]});
  for (int top = 0; top < 5; ++top) {
    for (int front = 0; front < 4; ++front) {
      for (int right = 0; right < 3; ++right) file.add_voxel(static_cast<uint8_t>(25 * right + 5 * front + top));
    }
  }
  return scan_of(file.bytes());
}

SliceSettings whole(SlicePlane plane) {
  return {.count = 100, .plane = plane, .windows = {{0, 255}}};
}

int pixel(const at::Tensor& picture, int64_t row, int64_t column) {
  return picture[0][row][column].item<uint8_t>();
}

TEST(VolumeSlices, AreShownAsRadiologistsSeeThem) {
  const auto axial = read_slices(boxes(), whole(SlicePlane::kAxial));
  ASSERT_EQ(axial.size(), 5U);
  EXPECT_EQ(axial[0].sizes(), (at::IntArrayRef{3, 4, 3}));
  EXPECT_EQ(axial[0].scalar_type(), at::kByte);
  EXPECT_EQ(pixel(axial[1], 0, 0), 25 * 2 + 5 * 3 + 1);  // front above, right on the left
  EXPECT_EQ(pixel(axial[4], 3, 2), 4);
  const auto coronal = read_slices(boxes(), whole(SlicePlane::kCoronal));
  ASSERT_EQ(coronal.size(), 4U);
  EXPECT_EQ(coronal[0].sizes(), (at::IntArrayRef{3, 5, 3}));
  EXPECT_EQ(pixel(coronal[2], 0, 0), 25 * 2 + 5 * 2 + 4);  // top above, right on the left
  const auto sagittal = read_slices(boxes(), whole(SlicePlane::kSagittal));
  ASSERT_EQ(sagittal.size(), 3U);
  EXPECT_EQ(sagittal[0].sizes(), (at::IntArrayRef{3, 5, 4}));
  EXPECT_EQ(pixel(sagittal[1], 0, 0), 25 + 5 * 3 + 4);  // top above, front on the left
  for (const auto& picture : sagittal) EXPECT_TRUE(at::equal(picture[0], picture[2]));
}

TEST(VolumeSlices, AreSpreadFromTheFirstToTheLast) {
  SliceSettings settings = whole(SlicePlane::kAxial);
  settings.count = 3;
  EXPECT_EQ(slices_of(read_volume_info(boxes()), settings), 3);
  const auto slices = read_slices(boxes(), settings);
  ASSERT_EQ(slices.size(), 3U);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(pixel(slices[i], 3, 2), 2 * i);
  settings.count = 1;
  EXPECT_EQ(pixel(read_slices(boxes(), settings).at(0), 3, 2), 0);
}

TEST(VolumeSlices, PixelsAreSquare) {
  const SliceSettings settings = whole(SlicePlane::kSagittal);
  const auto scan = boxes({1, 0.5, 2});
  const ImageSize size = slice_size(read_volume_info(scan), settings);
  EXPECT_EQ(size, (ImageSize{20, 4}));
  EXPECT_EQ(read_slices(scan, settings).at(0).sizes(), (at::IntArrayRef{3, size.height, size.width}));
  const ImageSize limited = slice_size({{4000, 3000, 10}, {1, 2, 1}, "RAS", 1}, whole(SlicePlane::kAxial));
  EXPECT_EQ(limited, (ImageSize{4096, 2731}));
}

TEST(VolumeSlices, HaveAWindowForEachChannelOrPercentiles) {
  SliceSettings settings = whole(SlicePlane::kAxial);
  settings.windows = {{0, 10}, {0, 51}, {60, 70}};
  const at::Tensor picture = read_slices(boxes(), settings).at(0);
  EXPECT_EQ(picture[0][0][1].item<uint8_t>(), 255);
  EXPECT_EQ(picture[1][0][1].item<uint8_t>(), 200);
  EXPECT_EQ(picture[2][0][1].item<uint8_t>(), 0);
  settings.windows = {};
  const auto slices = read_slices(boxes(), settings);
  EXPECT_EQ(pixel(slices[0], 3, 2), 0);
  EXPECT_EQ(pixel(slices[4], 0, 0), 255);
  EXPECT_GT(slice_reading_bytes(read_volume_info(boxes()), settings), 0);
}

TEST(VolumeSlices, OfASeriesAreRefused) {
  NiftiFile file(NiftiFile::k1, {2, 2, 2, 2}, 2);
  for (int i = 0; i < 16; ++i) file.add_voxel(static_cast<uint8_t>(i));
  EXPECT_THAT([&] { read_slices(scan_of(file.bytes()), {}); },
              ThrowsMessage<UserError>(HasSubstr("a series of 2 volumes")));
}

}  // namespace
}  // namespace vlmtrain::image
