#pragma once

#include "image/codecs.h"

namespace vlmtrain::image {

/// Pillow's conversions to RGB, to the bit.
StoredPixels gray_to_rgb(const StoredPixels& gray);
StoredPixels inverted_cmyk_to_rgb(const StoredPixels& cmyk);  ///< 255 is no ink, as in Adobe's JPEGs
StoredPixels rgba_on_white(const StoredPixels& rgba);

}  // namespace vlmtrain::image
