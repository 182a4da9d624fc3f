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

/// Returns the size of the primary image of a HEIF file (HEIC or AVIF). Its rotation and mirroring
/// (`irot`, `imir`) are applied, so that the orientation is always kUpright. EXIF's orientation is
/// ignored, as HEIF requires (ISO/IEC 23008-12, A.2.4) and as Pillow does. `format` is "HEIC" or
/// "AVIF". Throws UserError (kBadData) for invalid headers, and if libheif is not installed.
/// Thread-safe.
ImageHeader read_heif_header(ByteSource& source, const std::string& format, const std::string& name);

/// Returns the number of pages, and size and orientation of the first one, of a TIFF or BigTIFF file. Throws UserError
/// (kBadData) for invalid headers and for kinds of samples and compression that decode_tiff() does
/// not support. `name` identifies the file in messages. Thread-safe.
ImageHeader read_tiff_header(ByteSource& source, const std::string& name);

}  // namespace vlmtrain::image
