#include "vlmtrain/image/decode.h"

#include <ATen/ops/empty.h>

#include "image/codec/byte_source.h"
#include "image/codec/codecs.h"
#include "image/codec/header.h"
#include "image/codec/orientation.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/io/record.h"

namespace vlmtrain::image {

namespace {

StoredPixels decode_stored_pixels(std::span<const std::byte> bytes, const ImageHeader& header,
                                  const std::string& name) {
  switch (header.format) {
    case ImageFormat::kJpeg:
      return decode_jpeg(bytes, header.stored_size, name);
    case ImageFormat::kPng:
      return decode_png(bytes, header.stored_size, name);
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
StoredPixels convert_pixels(const StoredPixels& source, ConvertPixel convert_pixel) {
  StoredPixels rgb(source.size, 3);
  const int64_t num_pixels = source.size.height * source.size.width;
  for (int64_t i = 0; i < num_pixels; ++i) convert_pixel(&source.samples[i * source.channels], &rgb.samples[i * 3]);
  return rgb;
}

}  // namespace

at::Tensor decode_image(std::span<const std::byte> bytes, const std::string& name) {
  MemorySource source(bytes);
  const ImageHeader header = read_header(source, name);
  const auto [height, width] = get_upright_size(header);
  at::Tensor result = at::empty({3, height, width}, at::kByte);
  auto* const planes = result.mutable_data_ptr<uint8_t>();
  const bool is_upright_jpeg = header.format == ImageFormat::kJpeg && header.orientation == Orientation::kUpright;
  // Decoding directly to planes saves a copy of the image.
  if (is_upright_jpeg && decode_jpeg_planes(bytes, header.stored_size, name, planes)) return result;
  write_upright_planes(decode_stored_pixels(bytes, header, name), header.orientation, planes);
  return result;
}

at::Tensor decode_image(const io::MediaRef& image) {
  if (!image.bytes) return decode_image(read_file_bytes(image.path), image.path);
  return decode_image(std::as_bytes(std::span(io::get_media_bytes(image))), image.path);
}

ImageSize read_image_size(const io::MediaRef& image) {
  if (image.bytes) {
    MemorySource source(std::as_bytes(std::span(io::get_media_bytes(image))));
    return get_upright_size(read_header(source, image.path));
  }
  FileSource source(image.path);
  return get_upright_size(read_header(source, image.path));
}

StoredPixels convert_gray_to_rgb(const StoredPixels& gray) {
  return convert_pixels(gray,
                        [](const uint8_t* source, uint8_t* target) { target[0] = target[1] = target[2] = source[0]; });
}

StoredPixels convert_inverted_cmyk_to_rgb(const StoredPixels& cmyk) {
  return convert_pixels(cmyk, [](const uint8_t* source, uint8_t* target) {
    const uint32_t key = source[3];  // 255 means no black ink
    for (int channel = 0; channel < 3; ++channel) {
      const uint32_t ink = 255 - source[channel];
      target[channel] = static_cast<uint8_t>(key - divide_by_255(ink * key + 128));
    }
  });
}

StoredPixels composite_on_white(const StoredPixels& rgba) {
  // Pillow's alpha_composite keeps seven more bits in the division.
  constexpr uint32_t kExtraBits = 7;
  return convert_pixels(rgba, [](const uint8_t* source, uint8_t* target) {
    const uint32_t alpha = source[3];
    for (int channel = 0; channel < 3; ++channel) {
      const uint32_t blend = (source[channel] * alpha + 255 * (255 - alpha)) << kExtraBits;
      target[channel] = static_cast<uint8_t>(divide_by_255(blend + (128U << kExtraBits)) >> kExtraBits);
    }
  });
}

}  // namespace vlmtrain::image
