#include "image/upright.h"

#include "image/split_channels.h"

namespace vlmtrain::image {
namespace {

/// Where the upright picture's pixels lie in the stored one: (y, x) at first + y * down + x * right, counted in pixels.
struct Walk {
  int64_t first;
  int64_t down;
  int64_t right;
};

Walk upright_walk(Orientation orientation, ImageSize stored) {
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

ImageSize upright_size(ImageSize stored, Orientation orientation) {
  if (swaps_sides(orientation)) return {stored.width, stored.height};
  return stored;
}

void write_upright_planes(const StoredPixels& rgb, Orientation orientation, uint8_t* planes) {
  const Walk walk = upright_walk(orientation, rgb.size);
  const auto [height, width] = upright_size(rgb.size, orientation);
  uint8_t* red = planes;
  uint8_t* green = red + height * width;
  uint8_t* blue = green + height * width;
  int64_t out = 0;
  for (int64_t y = 0; y < height; ++y) {
    const uint8_t* pixel = &rgb.samples[(walk.first + y * walk.down) * 3];
    if (walk.right == 1) {
      split_channels(pixel, width, {red + out, green + out, blue + out});
      out += width;
      continue;
    }
    for (int64_t x = 0; x < width; ++x, ++out) {
      const uint8_t* from = pixel + x * walk.right * 3;
      red[out] = from[0];
      green[out] = from[1];
      blue[out] = from[2];
    }
  }
}

void write_upright_plane(const StoredPixels& grey, Orientation orientation, uint8_t* plane) {
  const Walk walk = upright_walk(orientation, grey.size);
  const auto [height, width] = upright_size(grey.size, orientation);
  for (int64_t y = 0; y < height; ++y) {
    const uint8_t* from = &grey.samples[walk.first + y * walk.down];
    for (int64_t x = 0; x < width; ++x) *plane++ = from[x * walk.right];
  }
}

}  // namespace vlmtrain::image
