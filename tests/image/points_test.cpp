#include "vlmtrain/image/points.h"

#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "vlmtrain/image/image_file.h"

namespace vlmtrain::image {
namespace {

/// Returns a black image with a white square of 3 x 3 pixels around the pixel (y, x).
at::Tensor draw_square(ImageSize size, int64_t y, int64_t x) {
  at::Tensor image = at::zeros({3, size.height, size.width}, at::kByte);
  image.narrow(1, y - 1, 3).narrow(2, x - 1, 3).fill_(255);
  return image;
}

/// Returns the center of the brightness of an image.
Point find_center(const at::Tensor& image) {
  const at::Tensor gray = image.select(0, 0).to(at::kDouble).contiguous();
  const auto* const values = gray.const_data_ptr<double>();
  double sum = 0, x = 0, y = 0;
  for (int64_t row = 0; row < gray.size(0); ++row) {
    for (int64_t column = 0; column < gray.size(1); ++column) {
      const double value = values[row * gray.size(1) + column];
      sum += value;
      x += value * (static_cast<double>(column) + 0.5);
      y += value * (static_cast<double>(row) + 0.5);
    }
  }
  return {.x = x / sum, .y = y / sum};
}

constexpr ImageSize kSize{.height = 40, .width = 60};
constexpr int64_t kRow = 12, kColumn = 41;
constexpr Point kCenter{.x = 41.5, .y = 12.5};

void expect_near(Point actual, Point expected, double tolerance) {
  EXPECT_NEAR(actual.x, expected.x, tolerance);
  EXPECT_NEAR(actual.y, expected.y, tolerance);
}

TEST(AugmentPoint, MovesWithThePixels) {
  for (const bool is_flipped : {false, true}) {
    for (const double degrees : {-25.0, 0.0, 7.5, 90.0}) {
      const Augmentation augmentation{.is_horizontally_flipped = is_flipped, .rotation_degrees = degrees};
      const at::Tensor moved = augment_image(draw_square(kSize, kRow, kColumn), augmentation);
      const Point point = augment_point(kCenter, kSize, augmentation);
      if (point.y < 3 || point.y > 37) continue;  // outside of the image after 90 degrees
      expect_near(find_center(moved), point, 0.05);
    }
  }
}

TEST(AugmentPoint, KeepsPointsWithoutAugmentation) {
  EXPECT_EQ(augment_point(kCenter, kSize, {.brightness_factor = 2}), kCenter);
}

/// Returns a JPEG with the EXIF orientation `orientation`.
std::string make_rotated_jpeg(const at::Tensor& stored, char orientation) {
  const std::string jpeg = encode_jpeg(stored, 95);
  // Segment APP1 of 34 bytes: TIFF header, and a directory with the entry 0x0112 (SHORT, one value).
  constexpr std::string_view kBegin(
      "\xFF\xE1\x00\x22"
      "Exif\0\0"
      "II*\0\x08\0\0\0"
      "\x01\0"
      "\x12\x01\x03\0\x01\0\0\0",
      28);
  constexpr size_t kTrailingZeros = 7;  // of the value, and the offset of the next directory
  std::string exif(kBegin);
  exif += orientation;
  exif.append(kTrailingZeros, '\0');
  return jpeg.substr(0, 2) + exif + jpeg.substr(2);
}

TEST(StoredImageMap, FollowsTheOrientation) {
  const at::Tensor stored = draw_square(kSize, kRow, kColumn);
  for (char orientation = 1; orientation <= 8; ++orientation) {
    SCOPED_TRACE(static_cast<int>(orientation));
    io::MediaRef file("photo.jpg");
    file.bytes = std::make_shared<const std::string>(make_rotated_jpeg(stored, orientation));
    const at::Tensor displayed = decode_image(file);
    EXPECT_EQ(displayed.size(1), orientation >= 5 ? kSize.width : kSize.height);
    const StoredImageMap map(file);
    EXPECT_EQ(map.stored_size(), kSize);
    expect_near(find_center(displayed), map.map(kCenter), 0.5);
  }
}

}  // namespace
}  // namespace vlmtrain::image
