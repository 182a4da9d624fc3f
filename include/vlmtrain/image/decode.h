#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "vlmtrain/image/size.h"
#include "vlmtrain/io/record.h"

namespace vlmtrain::image {

/// Returns the peak memory of decoding an image of this size: its samples as stored, as RGB and as
/// planes, and the coefficients that a codec keeps of a progressive file.
constexpr int64_t estimate_decoding_bytes(ImageSize size) {
  constexpr int64_t kStored = 4, kRgb = 3, kPlanes = 3, kCoefficients = 8;  // bytes per pixel
  return (kStored + kRgb + kPlanes + kCoefficients) * size.height * size.width;
}

/// Decodes a JPEG, PNG or still WebP file in memory to RGB: uint8 [3, height, width], contiguous,
/// on the CPU.
///
/// The bytes equal those of Pillow and transformers 5.23 for `exif_transpose(Image.open(path))` in
/// an image processor with do_convert_rgb: gray values and palettes are expanded, CMYK is converted
/// as in Pillow, 16-bit samples keep their upper byte, and transparent images are composited on
/// white. (The loader of transformers drops alpha for paths, which shows the hidden color of
/// transparent pixels. Training scripts usually open images themselves.) One difference: a 16-bit
/// gray PNG also keeps its upper byte, where Pillow clips at 255.
///
/// `name`: names the image in errors. Throws UserError (kBadData) if the file is truncated,
/// corrupt, too large or of another format; never fills in missing data. Thread-safe.
at::Tensor decode_image(std::span<const std::byte> bytes, const std::string& name);

/// Decodes an image file or embedded image, named by its path in errors.
at::Tensor decode_image(const io::MediaRef& image);

/// Returns the size that decode_image() would give, from a few small reads of the headers. Throws
/// as decode_image() does for invalid headers; corrupt pixel data is not detected. Thread-safe.
ImageSize read_image_size(const io::MediaRef& image);

}  // namespace vlmtrain::image
