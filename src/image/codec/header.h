#pragma once

#include <cstdint>
#include <string>

#include "image/codec/byte_source.h"
#include "image/codec/orientation.h"
#include "vlmtrain/image/size.h"
#include "vlmtrain/io/record.h"

namespace vlmtrain::image {

enum class ImageFormat { kJpeg, kPng, kWebp, kTiff, kHeif };

/// The properties of an image file, from its headers.
struct ImageHeader {
  ImageFormat format;
  ImageSize stored_size;  ///< size before the orientation is applied
  Orientation orientation = Orientation::kUpright;
  int64_t num_pages = 1;  ///< pages of a TIFF, of which the first is decoded
};

/// Returns the size after the orientation is applied.
ImageSize compute_upright_size(const ImageHeader& header);

/// Detects the format from the first bytes and reads a few bytes of each segment or chunk. Throws
/// UserError (kBadData) for other formats, invalid headers and images beyond kMaxImagePixels.
/// `name` identifies the image in messages.
ImageHeader read_header(ByteSource& source, const std::string& name);
/// Reads the header of a file or of embedded bytes.
ImageHeader read_header(const io::MediaRef& image);

}  // namespace vlmtrain::image
