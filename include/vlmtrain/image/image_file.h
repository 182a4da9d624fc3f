#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "vlmtrain/base/tensor_fwd.h"
#include "vlmtrain/image/size.h"
#include "vlmtrain/io/record.h"

namespace vlmtrain::image {

/// Returns the peak host memory of decoding an image of this size, in bytes: its samples as stored
/// (up to 4 channels), as interleaved RGB and as planes, and the coefficients that libjpeg keeps of
/// a progressive file (4 channels of 2 bytes).
constexpr int64_t estimate_image_decoding_memory(ImageSize size) {
  constexpr int64_t kStoredBytesPerPixel = 4, kRgbBytesPerPixel = 3, kPlanarBytesPerPixel = 3,
                    kCoefficientBytesPerPixel = 8;  // as listed above
  return (kStoredBytesPerPixel + kRgbBytesPerPixel + kPlanarBytesPerPixel + kCoefficientBytesPerPixel) * size.height *
         size.width;
}

/// Decodes a JPEG, PNG, TIFF, HEIC, AVIF or still WebP file in memory to RGB: uint8 [3, height,
/// width], contiguous, on the CPU.
///
/// The bytes equal those of Pillow and transformers 5.23 for `exif_transpose(Image.open(path))` in
/// an image processor with do_convert_rgb: gray values and palettes are expanded, CMYK is converted
/// as in Pillow, 16-bit samples keep their upper byte, and transparent images are composited on
/// white. (transformers' own loader of paths drops alpha, so that transparent pixels show their
/// hidden color. Training scripts usually open images with Pillow.) One difference: of 16-bit gray,
/// too, the upper byte is kept, whereas Pillow clips the value at 255. HEIC and AVIF need libheif at
/// run time and may differ from Pillow by rounding, and by the interpolation of subsampled chroma.
/// Of a TIFF, the first page is decoded.
///
/// `name` identifies the image in error messages. Throws UserError (kBadData) if the file is
/// truncated, corrupt, larger than kMaxImagePixels or of another format. Missing pixels are never
/// filled in. Thread-safe.
at::Tensor decode_image(std::span<const std::byte> bytes, const std::string& name);

/// Decodes an image file, or the embedded bytes of `image`, as the overload above does. Error
/// messages contain its path. Throws UserError (kBadData) also if the file cannot be read.
at::Tensor decode_image(const io::MediaRef& image);

/// The properties of an image file that its headers tell.
struct ImageInfo {
  ImageSize size;         ///< of the result of decode_image()
  int64_t num_pages = 1;  ///< pages of a TIFF, of which decode_image() decodes the first; 1 for other formats
};

/// Returns the properties of an image from a few small reads of the headers. Throws the errors of
/// decode_image() for invalid headers. Does not detect corrupt pixel data. Thread-safe.
ImageInfo read_image_info(const io::MediaRef& image);

/// Returns read_image_info(image).size.
ImageSize read_image_size(const io::MediaRef& image);

/// Returns an image, uint8 [3, height, width] RGB on the CPU, as a baseline JPEG file. `quality`:
/// as in libjpeg, 1 to 100. For reports, since JPEG is lossy. Aborts if memory is exhausted.
std::string encode_jpeg(const at::Tensor& image, int quality);

/// Returns an image, uint8 [3, height, width] RGB on the CPU, as a PNG file.
std::string encode_png(const at::Tensor& image);

/// Returns a mask, uint8 [height, width] on the CPU, as an 8-bit gray PNG file with 255 for nonzero
/// pixels.
std::string encode_mask_png(const at::Tensor& mask);

}  // namespace vlmtrain::image
