#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "vlmtrain/image/size.h"

namespace vlmtrain::image {

/// An image as stored in a file, before its orientation is applied. `samples` holds rows of
/// interleaved samples, [height, width, channels].
struct InterleavedPixels {
  ImageSize size;
  int64_t num_channels;  ///< 1 gray, 3 RGB, 4 RGBA (PNG, WebP, HEIF) or inverted CMYK (JPEG); TIFF: as in the file
  std::unique_ptr<uint8_t[]> samples;

  InterleavedPixels(ImageSize size_in, int64_t num_channels_in)
      : size(size_in),
        num_channels(num_channels_in),
        samples(std::make_unique_for_overwrite<uint8_t[]>(size_in.height * size_in.width * num_channels_in)) {}

  /// Returns the number of bytes of a row, which follow each other without padding.
  int64_t row_bytes() const { return size.width * num_channels; }
};

/// The samples of a PNG, neither scaled nor looked up in the palette, without alpha.
struct PngSamples {
  InterleavedPixels pixels;  ///< its `num_channels` counts bytes per pixel; 16-bit samples are two bytes, big-endian
  int64_t num_channels;      ///< 1 gray or palette index, 3 RGB
  int64_t bit_depth;         ///< per sample in the file: 1, 2, 4, 8 or 16
  bool is_palette = false;   ///< samples are palette indices
  bool has_non_identity_palette = false;  ///< entry i of the palette is not gray value i, for some i
};

// Each decoder decodes a whole file of its format to RGB. `stored_size`: ImageHeader::stored_size
// of the file. Throws UserError (kBadData) if a part of the file is missing or corrupt, or if its
// size differs from `stored_size`. `name` identifies the file in messages.

InterleavedPixels decode_jpeg(std::span<const std::byte> bytes, ImageSize stored_size, const std::string& name);
InterleavedPixels decode_png(std::span<const std::byte> bytes, ImageSize stored_size, const std::string& name);
InterleavedPixels decode_webp(std::span<const std::byte> bytes, ImageSize stored_size, const std::string& name);
InterleavedPixels decode_tiff(std::span<const std::byte> bytes, ImageSize stored_size, const std::string& name);
/// HEIC and AVIF, with the transformations of the file applied.
InterleavedPixels decode_heif(std::span<const std::byte> bytes, ImageSize stored_size, const std::string& name);

/// Decodes a JPEG to `planes` [3, height, width] row by row, so that memory holds the image once.
/// Does not apply the orientation. Returns false, without writing to `planes`, if the file does not
/// have three channels. Throws the errors of decode_jpeg().
bool decode_jpeg_planes(std::span<const std::byte> bytes, ImageSize stored_size, const std::string& name,
                        uint8_t* planes);

/// Decodes a PNG without conversion to RGB. Throws the errors of decode_png(), and UserError
/// (kBadData) if only the alpha channel varies.
PngSamples decode_png_samples(std::span<const std::byte> bytes, ImageSize stored_size, const std::string& name);

// Conversions to RGB, bit-equal to Pillow's. Defined in image/image_file.cpp. REQUIRES: 1 channel for
// gray, 4 for CMYK and RGBA.

InterleavedPixels convert_gray_to_rgb(const InterleavedPixels& gray);
/// Converts CMYK whose value 255 means no ink, as in Adobe's JPEG files.
InterleavedPixels convert_inverted_cmyk_to_rgb(const InterleavedPixels& cmyk);
/// Composites RGBA, with alpha not premultiplied, on white.
InterleavedPixels composite_on_white(const InterleavedPixels& rgba);
/// Divides the colors of RGBA by alpha.
void unpremultiply_alpha(InterleavedPixels& rgba);

}  // namespace vlmtrain::image
