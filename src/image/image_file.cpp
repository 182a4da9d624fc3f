#include "vlmtrain/image/image_file.h"

// jpeglib.h requires size_t and FILE to be declared before it.
// clang-format off
#include <cstddef>
#include <cstdio>
#include <jpeglib.h>
// clang-format on

#include <png.h>

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstdlib>

#include "image/codec/byte_source.h"
#include "image/codec/codecs.h"
#include "image/codec/header.h"
#include "image/codec/orientation.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/image/mask.h"
#include "vlmtrain/io/record.h"

namespace vlmtrain::image {

namespace {

InterleavedPixels decode_interleaved_pixels(std::span<const std::byte> bytes, const ImageHeader& header,
                                            const std::string& name) {
  switch (header.format) {
    case ImageFormat::kJpeg:
      return decode_jpeg(bytes, header.stored_size, name);
    case ImageFormat::kPng:
      return decode_png(bytes, header.stored_size, name);
    case ImageFormat::kTiff:
      return decode_tiff(bytes, header.stored_size, name);
    case ImageFormat::kHeif:
      return decode_heif(bytes, header.stored_size, name);
    case ImageFormat::kWebp:
      break;
  }
  return decode_webp(bytes, header.stored_size, name);
}

/// Returns x / 255 rounded to nearest, given x + 128. Exact up to x = 255 * 255. Source:
/// SHIFTFORDIV255 of Pillow's ImagingUtils.h.
constexpr uint32_t divide_by_255(uint32_t x_plus_half) {
  return ((x_plus_half >> 8) + x_plus_half) >> 8;
}

/// Returns RGB pixels. `convert_pixel` writes one pixel from the source's samples of that pixel.
template <class ConvertPixel>
InterleavedPixels convert_pixels_to_rgb(const InterleavedPixels& source, ConvertPixel convert_pixel) {
  InterleavedPixels rgb(source.size, 3);
  const int64_t num_pixels = source.size.height * source.size.width;
  for (int64_t i = 0; i < num_pixels; ++i) convert_pixel(&source.samples[i * source.num_channels], &rgb.samples[i * 3]);
  return rgb;
}

}  // namespace

at::Tensor decode_image(std::span<const std::byte> bytes, const std::string& name) {
  MemoryByteSource source(bytes);
  const ImageHeader header = read_header(source, name);
  const auto [height, width] = compute_upright_size(header);
  at::Tensor result = at::empty({3, height, width}, at::kByte);
  auto* const planes = result.mutable_data_ptr<uint8_t>();
  const bool is_upright_jpeg = header.format == ImageFormat::kJpeg && header.orientation == Orientation::kUpright;
  // Decoding directly to planes saves a copy of the image.
  if (is_upright_jpeg && decode_jpeg_planes(bytes, header.stored_size, name, planes)) return result;
  write_upright_rgb_planes(decode_interleaved_pixels(bytes, header, name), header.orientation, planes);
  return result;
}

at::Tensor decode_image(const io::MediaRef& image) {
  if (!image.bytes) return decode_image(read_file_bytes(image.path), image.path);
  return decode_image(std::as_bytes(std::span(io::get_media_bytes(image))), image.path);
}

ImageHeader read_header(const io::MediaRef& image) {
  if (image.bytes) {
    MemoryByteSource source(std::as_bytes(std::span(io::get_media_bytes(image))));
    return read_header(source, image.path);
  }
  FileByteSource source(image.path);
  return read_header(source, image.path);
}

ImageInfo read_image_info(const io::MediaRef& image) {
  const ImageHeader header = read_header(image);
  return {.size = compute_upright_size(header), .num_pages = header.num_pages};
}

ImageSize read_image_size(const io::MediaRef& image) {
  return read_image_info(image).size;
}

InterleavedPixels convert_gray_to_rgb(const InterleavedPixels& gray) {
  return convert_pixels_to_rgb(
      gray, [](const uint8_t* source, uint8_t* target) { target[0] = target[1] = target[2] = source[0]; });
}

InterleavedPixels convert_inverted_cmyk_to_rgb(const InterleavedPixels& cmyk) {
  return convert_pixels_to_rgb(cmyk, [](const uint8_t* source, uint8_t* target) {
    const uint32_t key = source[3];  // 255 means no black ink
    for (int channel = 0; channel < 3; ++channel) {
      const uint32_t ink = 255 - source[channel];
      target[channel] = static_cast<uint8_t>(key - divide_by_255(ink * key + 128));
    }
  });
}

InterleavedPixels composite_on_white(const InterleavedPixels& rgba) {
  // Pillow's alpha_composite keeps seven more bits in the division.
  constexpr uint32_t kExtraPrecisionBits = 7;
  return convert_pixels_to_rgb(rgba, [](const uint8_t* source, uint8_t* target) {
    const uint32_t alpha = source[3];
    for (int channel = 0; channel < 3; ++channel) {
      const uint32_t scaled_blend = (source[channel] * alpha + 255 * (255 - alpha)) << kExtraPrecisionBits;
      target[channel] =
          static_cast<uint8_t>(divide_by_255(scaled_blend + (128U << kExtraPrecisionBits)) >> kExtraPrecisionBits);
    }
  });
}

void unpremultiply_alpha(InterleavedPixels& rgba) {
  const int64_t num_pixels = rgba.size.height * rgba.size.width;
  for (int64_t i = 0; i < num_pixels; ++i) {
    uint8_t* const pixel = &rgba.samples[i * 4];
    const uint32_t alpha = pixel[3];
    if (alpha == 0 || alpha == 255) continue;  // as in Pillow
    for (int channel = 0; channel < 3; ++channel) {
      pixel[channel] = static_cast<uint8_t>(std::min(255 * uint32_t{pixel[channel]} / alpha, uint32_t{255}));
    }
  }
}

namespace {

/// Prints libjpeg's message and aborts. Encoding pixels in memory fails only if memory is
/// exhausted. libjpeg's default handler would call exit().
[[noreturn]] void abort_on_error(j_common_ptr compressor) {
  (*compressor->err->output_message)(compressor);
  std::abort();
}

/// Encodes `rows`, contiguous uint8 [height, width, channels] or [height, width], as PNG. `format`:
/// one of libpng's PNG_FORMAT_* with that number of channels.
std::string encode_interleaved_png(const at::Tensor& rows, png_uint_32 format) {
  png_image png{};
  png.version = PNG_IMAGE_VERSION;
  png.height = static_cast<png_uint_32>(rows.size(0));
  png.width = static_cast<png_uint_32>(rows.size(1));
  png.format = format;
  const auto* const pixels = rows.const_data_ptr<uint8_t>();
  png_alloc_size_t size = PNG_IMAGE_PNG_SIZE_MAX(png);
  std::string encoded_png(size, '\0');
  const int succeeded = png_image_write_to_memory(&png, encoded_png.data(), &size, /*convert_to_8_bit=*/0, pixels,
                                                  /*row_stride=*/0, /*colormap=*/nullptr);
  VLMTRAIN_CHECK(succeeded != 0, "libpng cannot encode {} x {} pixels: {}", rows.size(1), rows.size(0), png.message);
  encoded_png.resize(size);
  return encoded_png;
}

}  // namespace

std::string encode_jpeg(const at::Tensor& image, int quality) {
  VLMTRAIN_CHECK(image.dim() == 3 && image.size(0) == 3 && image.scalar_type() == at::kByte && image.is_cpu(),
                 "the image to encode must be uint8 [3, height, width] on the CPU");
  const at::Tensor rows = image.permute({1, 2, 0}).contiguous();

  jpeg_error_mgr errors{};
  jpeg_compress_struct compressor{};
  compressor.err = jpeg_std_error(&errors);
  errors.error_exit = abort_on_error;
  jpeg_create_compress(&compressor);
  unsigned char* bytes = nullptr;
  unsigned long encoded_size = 0;  // NOLINT(google-runtime-int): libjpeg's type
  jpeg_mem_dest(&compressor, &bytes, &encoded_size);
  compressor.image_height = static_cast<JDIMENSION>(rows.size(0));
  compressor.image_width = static_cast<JDIMENSION>(rows.size(1));
  compressor.input_components = 3;
  compressor.in_color_space = JCS_RGB;
  jpeg_set_defaults(&compressor);
  jpeg_set_quality(&compressor, quality, TRUE);
  jpeg_start_compress(&compressor, TRUE);
  auto* const pixels = static_cast<JSAMPLE*>(rows.data_ptr());
  while (compressor.next_scanline < compressor.image_height) {
    JSAMPROW row = pixels + size_t{compressor.next_scanline} * compressor.image_width * 3;
    jpeg_write_scanlines(&compressor, &row, 1);
  }
  jpeg_finish_compress(&compressor);
  jpeg_destroy_compress(&compressor);
  std::string encoded_jpeg(reinterpret_cast<const char*>(bytes), encoded_size);
  std::free(bytes);
  return encoded_jpeg;
}

std::string encode_png(const at::Tensor& image) {
  VLMTRAIN_CHECK(image.dim() == 3 && image.size(0) == 3 && image.scalar_type() == at::kByte && image.is_cpu(),
                 "the image to encode must be uint8 [3, height, width] on the CPU");
  return encode_interleaved_png(image.permute({1, 2, 0}).contiguous(), PNG_FORMAT_RGB);
}

std::string encode_mask_png(const at::Tensor& mask) {
  check_is_mask(mask);
  return encode_interleaved_png(mask.ne(0).to(at::kByte).mul_(255).contiguous(), PNG_FORMAT_GRAY);
}

}  // namespace vlmtrain::image
