#pragma once

#include <string>

#include "image/codec/byte_source.h"
#include "image/codec/header.h"

namespace vlmtrain::image {

/// Returns the size of the primary image of a HEIF file (HEIC or AVIF). Its rotation and mirroring
/// (`irot`, `imir`) are applied, so that the orientation is always kUpright. EXIF's orientation is
/// ignored, as HEIF requires (ISO/IEC 23008-12, A.2.4) and as Pillow does. `format` is "HEIC" or
/// "AVIF". Throws UserError (kBadData) for invalid headers, and if libheif is not installed.
/// Thread-safe.
ImageHeader read_heif_header(ByteSource& source, const std::string& format, const std::string& name);

}  // namespace vlmtrain::image
