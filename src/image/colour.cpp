#include "image/colour.h"

namespace vlmtrain::image {
namespace {

/// x / 255, rounded to nearest, for x + 128 given; exact up to 255 * 255.
constexpr uint32_t divide_by_255(uint32_t x_plus_half) {
  return ((x_plus_half >> 8) + x_plus_half) >> 8;
}

template <class Convert>
StoredPixels convert(const StoredPixels& from, Convert convert_pixel) {
  StoredPixels rgb(from.size, 3);
  const int64_t pixels = from.size.height * from.size.width;
  for (int64_t i = 0; i < pixels; ++i) convert_pixel(&from.samples[i * from.channels], &rgb.samples[i * 3]);
  return rgb;
}

}  // namespace

StoredPixels grey_to_rgb(const StoredPixels& grey) {
  return convert(grey, [](const uint8_t* from, uint8_t* to) { to[0] = to[1] = to[2] = from[0]; });
}

StoredPixels inverted_cmyk_to_rgb(const StoredPixels& cmyk) {
  return convert(cmyk, [](const uint8_t* from, uint8_t* to) {
    const uint32_t light = from[3];
    for (int channel = 0; channel < 3; ++channel) {
      const uint32_t ink = 255 - from[channel];
      to[channel] = static_cast<uint8_t>(light - divide_by_255(ink * light + 128));
    }
  });
}

StoredPixels rgba_on_white(const StoredPixels& rgba) {
  // Pillow's alpha_composite keeps seven more bits through the division, so it does here.
  constexpr uint32_t kBits = 7;
  return convert(rgba, [](const uint8_t* from, uint8_t* to) {
    const uint32_t alpha = from[3];
    for (int channel = 0; channel < 3; ++channel) {
      const uint32_t blend = (from[channel] * alpha + 255 * (255 - alpha)) << kBits;
      to[channel] = static_cast<uint8_t>(divide_by_255(blend + (128U << kBits)) >> kBits);
    }
  });
}

}  // namespace vlmtrain::image
