#include "image/colour.h"

namespace vlmtrain::image {
namespace {

/// x / 255, rounded to nearest, for x + 128 given; exact up to 255 * 255.
constexpr uint32_t divide_by_255(uint32_t x_plus_half) {
  return ((x_plus_half >> 8) + x_plus_half) >> 8;
}

template <class Convert>
StoredPixels convert_pixels(const StoredPixels& source, Convert convert_pixel) {
  StoredPixels rgb(source.size, 3);
  const int64_t pixels = source.size.height * source.size.width;
  for (int64_t i = 0; i < pixels; ++i) convert_pixel(&source.samples[i * source.channels], &rgb.samples[i * 3]);
  return rgb;
}

}  // namespace

StoredPixels gray_to_rgb(const StoredPixels& gray) {
  return convert_pixels(gray,
                        [](const uint8_t* source, uint8_t* target) { target[0] = target[1] = target[2] = source[0]; });
}

StoredPixels inverted_cmyk_to_rgb(const StoredPixels& cmyk) {
  return convert_pixels(cmyk, [](const uint8_t* source, uint8_t* target) {
    const uint32_t key = source[3];
    for (int channel = 0; channel < 3; ++channel) {
      const uint32_t ink = 255 - source[channel];
      target[channel] = static_cast<uint8_t>(key - divide_by_255(ink * key + 128));
    }
  });
}

StoredPixels rgba_on_white(const StoredPixels& rgba) {
  // Pillow's alpha_composite keeps seven more bits through the division, so it does here.
  constexpr uint32_t kExtraBits = 7;
  return convert_pixels(rgba, [](const uint8_t* source, uint8_t* target) {
    const uint32_t alpha = source[3];
    for (int channel = 0; channel < 3; ++channel) {
      const uint32_t blend = (source[channel] * alpha + 255 * (255 - alpha)) << kExtraBits;
      target[channel] = static_cast<uint8_t>(divide_by_255(blend + (128U << kExtraBits)) >> kExtraBits);
    }
  });
}

}  // namespace vlmtrain::image
