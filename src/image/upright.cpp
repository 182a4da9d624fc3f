#include "image/upright.h"

#include "image/split_channels.h"

namespace vlmtrain::image {
namespace {

/// Where the upright picture's pixels lie in the stored one: (y, x) at first + y * down + x * right, counted in pixels.
struct PixelStrides {
  int64_t offset;
  int64_t row_stride;
  int64_t column_stride;
};

PixelStrides compute_strides(Orientation orientation, ImageSize stored) {
  const auto [height, width] = stored;
  const int64_t last_row = (height - 1) * width;
  switch (orientation) {
    case Orientation::kUpright:
      return {0, width, 1};
    case Orientation::kMirrored:
      return {width - 1, width, -1};
    case Orientation::kHalfTurn:
      return {last_row + width - 1, -width, -1};
    case Orientation::kFlipped:
      return {last_row, -width, 1};
    case Orientation::kTransposed:
      return {0, 1, width};
    case Orientation::kQuarterTurn:
      return {last_row, 1, -width};
    case Orientation::kTransverse:
      return {last_row + width - 1, -1, -width};
    case Orientation::kThreeQuarterTurn:
      break;
  }
  return {width - 1, -1, width};
}

}  // namespace

ImageSize get_upright_size(ImageSize stored, Orientation orientation) {
  if (swaps_axes(orientation)) return {stored.width, stored.height};
  return stored;
}

void write_upright_planes(const StoredPixels& rgb, Orientation orientation, uint8_t* planes) {
  const PixelStrides strides = compute_strides(orientation, rgb.size);
  const auto [height, width] = get_upright_size(rgb.size, orientation);
  uint8_t* red = planes;
  uint8_t* green = red + height * width;
  uint8_t* blue = green + height * width;
  int64_t out = 0;
  for (int64_t y = 0; y < height; ++y) {
    const uint8_t* pixel = &rgb.samples[(strides.offset + y * strides.row_stride) * 3];
    if (strides.column_stride == 1) {
      split_channels(pixel, width, {red + out, green + out, blue + out});
      out += width;
      continue;
    }
    for (int64_t x = 0; x < width; ++x, ++out) {
      const uint8_t* source = pixel + x * strides.column_stride * 3;
      red[out] = source[0];
      green[out] = source[1];
      blue[out] = source[2];
    }
  }
}

void write_upright_plane(const StoredPixels& gray, Orientation orientation, uint8_t* plane) {
  const PixelStrides strides = compute_strides(orientation, gray.size);
  const auto [height, width] = get_upright_size(gray.size, orientation);
  for (int64_t y = 0; y < height; ++y) {
    const uint8_t* source = &gray.samples[strides.offset + y * strides.row_stride];
    for (int64_t x = 0; x < width; ++x) *plane++ = source[x * strides.column_stride];
  }
}

}  // namespace vlmtrain::image
