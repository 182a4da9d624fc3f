#pragma once

#include <string>

#include "image/byte_source.h"
#include "image/orientation.h"
#include "vlmtrain/image/size.h"

namespace vlmtrain::image {

enum class ImageFormat { kJpeg, kPng, kWebp };

/// What a picture's headers tell, without a look at its pixels.
struct ImageHeader {
  ImageFormat format;
  ImageSize stored;  ///< before the orientation is applied
  Orientation orientation = Orientation::kUpright;
};

/// The size of the upright picture.
ImageSize get_upright_size(const ImageHeader& header);

/// Reads a few bytes of each segment or chunk. A data error, with `name`, for other formats, broken headers and
/// pictures beyond kMaxImagePixels.
ImageHeader read_header(ByteSource& source, const std::string& name);

}  // namespace vlmtrain::image
