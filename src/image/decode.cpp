#include "vlmtrain/image/decode.h"

#include <ATen/ops/empty.h>

#include "image/byte_source.h"
#include "image/codecs.h"
#include "image/header.h"
#include "image/upright.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/io/medium_bytes.h"

namespace vlmtrain::image {
namespace {

StoredPixels decode_format(std::span<const std::byte> bytes, const ImageHeader& header, const std::string& name) {
  switch (header.format) {
    case ImageFormat::kJpeg:
      return decode_jpeg(bytes, header.stored, name);
    case ImageFormat::kPng:
      return decode_png(bytes, header.stored, name);
    case ImageFormat::kWebp:
      break;
  }
  return decode_webp(bytes, header.stored, name);
}

}  // namespace

at::Tensor decode_image(std::span<const std::byte> bytes, const std::string& name) {
  MemorySource source(bytes);
  const ImageHeader header = read_header(source, name);
  const auto [height, width] = get_upright_size(header);
  at::Tensor result = at::empty({3, height, width}, at::kByte);
  auto* const planes = result.mutable_data_ptr<uint8_t>();
  const bool is_upright_jpeg = header.format == ImageFormat::kJpeg && header.orientation == Orientation::kUpright;
  if (is_upright_jpeg && decode_jpeg_planes(bytes, header.stored, name, planes)) return result;
  write_upright_planes(decode_format(bytes, header, name), header.orientation, planes);
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

}  // namespace vlmtrain::image
