#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "vlmtrain/image/size.h"
#include "vlmtrain/io/medium.h"

namespace vlmtrain::image {

/// The most memory that decoding a picture of this size takes at a time: its samples as stored, as RGB and as planes,
/// and what a codec keeps of a progressive file.
constexpr int64_t estimate_decoding_bytes(ImageSize size) {
  constexpr int64_t kStored = 4, kRgb = 3, kPlanes = 3, kCoefficients = 8;  // a pixel
  return (kStored + kRgb + kPlanes + kCoefficients) * size.height * size.width;
}

/// Decodes a JPEG, PNG or still WebP file held in memory to RGB: uint8 [3, height, width], contiguous, on the CPU.
///
/// The bytes are those that Pillow and transformers 5.23 give for `exif_transpose(Image.open(path))` handed to an image
/// processor with do_convert_rgb: grey and palettes are expanded, CMYK is converted as Pillow does, 16-bit samples keep
/// their upper byte, and what is transparent is laid on white. (transformers' own loader of paths drops alpha instead,
/// which shows whatever colour the file keeps under it; training scripts open the picture themselves, so white it is.)
/// One difference: a 16-bit grey PNG keeps its upper byte too, where Pillow clips it at 255.
///
/// `name` is what an error calls the picture. A file that is cut off, corrupt, too large or of another format is a data
/// error; nothing is ever filled in for missing data. Thread-safe.
at::Tensor decode_image(std::span<const std::byte> bytes, const std::string& name);

/// The same of a picture's content, called by its path.
at::Tensor decode_image(const io::MediaRef& image);

/// The size that decode_image would give, read from the headers only: some reads of a few bytes. Fails as that does
/// where the headers are broken; pixels are not looked at. Thread-safe.
ImageSize read_image_size(const io::MediaRef& image);

}  // namespace vlmtrain::image
