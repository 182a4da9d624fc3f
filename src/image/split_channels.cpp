#include "image/split_channels.h"

#include "image/vectorised.h"

namespace vlmtrain::image {

VLMTRAIN_VECTORIZED void split_channels(const uint8_t* __restrict rgb, int64_t pixels, const PlaneRows& output) {
  uint8_t* __restrict red = output.red;
  uint8_t* __restrict green = output.green;
  uint8_t* __restrict blue = output.blue;
  for (int64_t i = 0; i < pixels; ++i) {
    red[i] = rgb[3 * i];
    green[i] = rgb[3 * i + 1];
    blue[i] = rgb[3 * i + 2];
  }
}

}  // namespace vlmtrain::image
