#pragma once

#include <string>

#include "image/codec/byte_source.h"
#include "image/codec/header.h"

namespace vlmtrain::image {

/// Returns the number of pages, and size and orientation of the first one, of a TIFF or BigTIFF file. Throws UserError
/// (kBadData) for invalid headers and for kinds of samples and compression that decode_tiff() does
/// not support. `name` identifies the file in messages. Thread-safe.
ImageHeader read_tiff_header(ByteSource& source, const std::string& name);

}  // namespace vlmtrain::image
