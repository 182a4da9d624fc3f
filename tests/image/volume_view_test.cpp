#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "image/nifti_file.h"
#include "vlmtrain/image/volume.h"

namespace vlmtrain::image {
namespace {

constexpr int64_t kRight = 7, kFront = 9, kTop = 5;  // voxels

bool is_white(const at::Tensor& image, int64_t row, int64_t column) {
  return image[0][row][column].item<uint8_t>() == 255;
}

TEST(OrthogonalSlices, UseTheRadiologicalConvention) {
  // Bright: the middle planes' voxels that are furthest to the right, the front and the top.
  at::Tensor volume = at::zeros({1, kRight, kFront, kTop});
  volume[0][kRight - 1][kFront - 1][kTop / 2] = 9;  // of the axial slice
  volume[0][kRight - 1][kFront / 2][kTop - 1] = 9;  // of the coronal one
  volume[0][kRight / 2][kFront - 1][kTop - 1] = 9;  // of the sagittal one
  const at::Tensor image = render_orthogonal_slices(volume);
  ASSERT_EQ(image.sizes(), (at::IntArrayRef{3, kFront, kRight + kRight + kFront}));
  ASSERT_EQ(image.scalar_type(), at::kByte);
  const int64_t margin = (kFront - kTop) / 2;  // smaller slices stand in the middle
  EXPECT_TRUE(is_white(image, 0, 0)) << "axial: the front above, right on the left";
  EXPECT_TRUE(is_white(image, margin, kRight)) << "coronal: the top above, right on the left";
  EXPECT_TRUE(is_white(image, margin, 2 * kRight)) << "sagittal: the top above, the front on the left";
  EXPECT_EQ(image[0].eq(255).sum().item<int64_t>(), 3);
}

TEST(OrthogonalSlices, ScaleToTheirPercentiles) {
  at::Tensor volume = at::full({1, 8, 8, 8}, -1000.0, at::kHalf);
  volume.narrow(1, 4, 4).fill_(-500);
  const at::Tensor image = render_orthogonal_slices(volume);
  EXPECT_EQ(image.min().item<int64_t>(), 0);
  EXPECT_EQ(image.max().item<int64_t>(), 255);
  EXPECT_EQ(render_orthogonal_slices(at::full({1, 4, 4, 4}, 3.0)).max().item<int64_t>(), 0)
      << "an empty view, no error";
}

/// A file whose axes point to posterior, right and inferior, bright at the right and front, in the
/// middle of its height.
TEST(OrthogonalSlices, OfAFileKeepItsProportions) {
  constexpr int64_t kBackSize = 10, kRightSize = 6, kDownSize = 5;
  NiftiFile file(NiftiFile::k1, {kBackSize, kRightSize, kDownSize, 2}, 16);
  file.set_sform(1, {0, 2, 0, -1, 0, 0, 0, 0, -1});
  file.set_pixdim(2, 2);
  for (int frame = 0; frame < 2; ++frame) {
    for (int64_t down = 0; down < kDownSize; ++down) {
      for (int64_t right = 0; right < kRightSize; ++right) {
        for (int64_t back = 0; back < kBackSize; ++back) {
          const bool is_bright = down == kDownSize / 2 && right == kRightSize - 1 && back == 0;
          file.add_voxel(is_bright ? 5.0F : 0.0F);
        }
      }
    }
  }
  const at::Tensor image = render_scan_slices(make_scan(file.bytes()), 100);
  // 12 mm to the right, 10 to the front, 5 to the top, a pixel a mm, the smallest of its spacings.
  EXPECT_EQ(image.sizes(), (at::IntArrayRef{3, 10, 12 + 12 + 10}));
  EXPECT_TRUE(is_white(image, 0, 0));
  EXPECT_EQ(render_scan_slices(make_scan(file.bytes()), 6).sizes(), (at::IntArrayRef{3, 5, 6 + 6 + 5}));
}

}  // namespace
}  // namespace vlmtrain::image
