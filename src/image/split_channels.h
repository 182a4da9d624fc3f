#pragma once

#include <cstdint>

namespace vlmtrain::image {

/// Where the three channels of a row of pixels go.
struct PlaneRows {
  uint8_t* red;
  uint8_t* green;
  uint8_t* blue;
};

/// Writes `pixels` interleaved RGB pixels to one row of each plane.
void split_channels(const uint8_t* rgb, int64_t pixels, const PlaneRows& output);

}  // namespace vlmtrain::image
