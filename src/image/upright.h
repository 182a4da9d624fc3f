#pragma once

#include <cstdint>

#include "image/codecs.h"
#include "image/orientation.h"

namespace vlmtrain::image {

/// The size of a picture stored as `stored` when it is upright.
ImageSize get_upright_size(ImageSize stored, Orientation orientation);

/// Writes interleaved RGB as stored to planes and upright: `planes` [3, height, width] of the upright picture.
void write_upright_planes(const StoredPixels& rgb, Orientation orientation, uint8_t* planes);

/// The same of one channel: `plane` [height, width].
void write_upright_plane(const StoredPixels& gray, Orientation orientation, uint8_t* plane);

}  // namespace vlmtrain::image
