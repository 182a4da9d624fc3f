#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "image/nifti_file.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/image/volume.h"

namespace vlmtrain::image {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

/// 3 × 4 × 5 voxels along right, anterior and superior with the value 25 · right + 5 · anterior +
/// superior.
io::MediaRef make_scan_of_boxes(std::array<double, 3> spacing = {1, 1, 1}) {
  NiftiFile nifti_file(NiftiFile::k1, {3, 4, 5}, 2);
  nifti_file.set_sform(1, {spacing[0], 0, 0, 0, spacing[1], 0, 0, 0, spacing[2]});
  for (int top = 0; top < 5; ++top) {
    for (int front = 0; front < 4; ++front) {
      for (int right = 0; right < 3; ++right) nifti_file.add_voxel(static_cast<uint8_t>(25 * right + 5 * front + top));
    }
  }
  return make_scan(nifti_file.bytes());
}

SliceSettings make_settings(SlicePlane plane) {
  return {.max_slices = 100, .plane = plane, .windows = {{0, 255}}};
}

int get_pixel(const at::Tensor& image, int64_t row, int64_t column) {
  return image[0][row][column].item<uint8_t>();
}

TEST(VolumeSlices, UseTheRadiologicalConvention) {
  const auto axial = read_slices(make_scan_of_boxes(), make_settings(SlicePlane::kAxial));
  ASSERT_EQ(axial.size(), 5U);
  EXPECT_EQ(axial[0].sizes(), (at::IntArrayRef{3, 4, 3}));
  EXPECT_EQ(axial[0].scalar_type(), at::kByte);
  EXPECT_EQ(get_pixel(axial[1], 0, 0), 25 * 2 + 5 * 3 + 1);  // front above, right on the left
  EXPECT_EQ(get_pixel(axial[4], 3, 2), 4);
  const auto coronal = read_slices(make_scan_of_boxes(), make_settings(SlicePlane::kCoronal));
  ASSERT_EQ(coronal.size(), 4U);
  EXPECT_EQ(coronal[0].sizes(), (at::IntArrayRef{3, 5, 3}));
  EXPECT_EQ(get_pixel(coronal[2], 0, 0), 25 * 2 + 5 * 2 + 4);  // top above, right on the left
  const auto sagittal = read_slices(make_scan_of_boxes(), make_settings(SlicePlane::kSagittal));
  ASSERT_EQ(sagittal.size(), 3U);
  EXPECT_EQ(sagittal[0].sizes(), (at::IntArrayRef{3, 5, 4}));
  EXPECT_EQ(get_pixel(sagittal[1], 0, 0), 25 + 5 * 3 + 4);  // top above, front on the left
  for (const auto& image : sagittal) EXPECT_TRUE(at::equal(image[0], image[2]));
}

TEST(VolumeSlices, AreSpacedEvenly) {
  SliceSettings settings = make_settings(SlicePlane::kAxial);
  settings.max_slices = 3;
  EXPECT_EQ(count_slices(read_volume_info(make_scan_of_boxes()), settings), 3);
  const auto slices = read_slices(make_scan_of_boxes(), settings);
  ASSERT_EQ(slices.size(), 3U);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(get_pixel(slices[i], 3, 2), 2 * i);
  settings.max_slices = 1;
  EXPECT_EQ(get_pixel(read_slices(make_scan_of_boxes(), settings).at(0), 3, 2), 0);
}

TEST(VolumeSlices, HaveSquarePixels) {
  const SliceSettings settings = make_settings(SlicePlane::kSagittal);
  const auto scan = make_scan_of_boxes({1, 0.5, 2});
  const ImageSize size = compute_slice_size(read_volume_info(scan), settings);
  EXPECT_EQ(size, (ImageSize{20, 4}));
  EXPECT_EQ(read_slices(scan, settings).at(0).sizes(), (at::IntArrayRef{3, size.height, size.width}));
  const ImageSize limited_size =
      compute_slice_size({{4000, 3000, 10}, {1, 2, 1}, "RAS", 1}, make_settings(SlicePlane::kAxial));
  EXPECT_EQ(limited_size, (ImageSize{4096, 2731}));
}

TEST(VolumeSlices, UseWindowsOrPercentiles) {
  SliceSettings settings = make_settings(SlicePlane::kAxial);
  settings.windows = {{0, 10}, {0, 51}, {60, 70}};
  const at::Tensor image = read_slices(make_scan_of_boxes(), settings).at(0);
  EXPECT_EQ(image[0][0][1].item<uint8_t>(), 255);
  EXPECT_EQ(image[1][0][1].item<uint8_t>(), 200);
  EXPECT_EQ(image[2][0][1].item<uint8_t>(), 0);
  settings.windows = {};
  const auto slices = read_slices(make_scan_of_boxes(), settings);
  EXPECT_EQ(get_pixel(slices[0], 3, 2), 0);
  EXPECT_EQ(get_pixel(slices[4], 0, 0), 255);
  EXPECT_GT(estimate_slice_reading_memory(read_volume_info(make_scan_of_boxes()), settings), 0);
}

TEST(VolumeSlices, RejectASeries) {
  NiftiFile nifti_file(NiftiFile::k1, {2, 2, 2, 2}, 2);
  for (int i = 0; i < 16; ++i) nifti_file.add_voxel(static_cast<uint8_t>(i));
  EXPECT_THAT([&] { read_slices(make_scan(nifti_file.bytes()), {}); },
              ThrowsMessage<UserError>(HasSubstr("a series of 2 volumes")));
}

}  // namespace
}  // namespace vlmtrain::image
