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

StoredPixels decode_stored(std::span<const std::byte> bytes, const Header& header, const std::string& name) {
  switch (header.format) {
    case Format::kJpeg:
      return decode_jpeg(bytes, header.stored, name);
    case Format::kPng:
      return decode_png(bytes, header.stored, name);
    case Format::kWebp:
      break;
  }
  return decode_webp(bytes, header.stored, name);
}

}  // namespace

at::Tensor decode_image(std::span<const std::byte> bytes, const std::string& name) {
  MemorySource source(bytes);
  const Header header = read_header(source, name);
  const auto [height, width] = upright_size(header);
  at::Tensor result = at::empty({3, height, width}, at::kByte);
  auto* const planes = result.mutable_data_ptr<uint8_t>();
  const bool is_upright_jpeg = header.format == Format::kJpeg && header.orientation == Orientation::kUpright;
  if (is_upright_jpeg && decode_jpeg_planes(bytes, header.stored, name, planes)) return result;
  write_upright_planes(decode_stored(bytes, header, name), header.orientation, planes);
  return result;
}

at::Tensor decode_image(const io::Medium& picture) {
  if (!picture.bytes) return decode_image(read_whole_file(picture.path), picture.path);
  return decode_image(std::as_bytes(std::span(io::bytes_of(picture))), picture.path);
}

ImageSize read_image_size(const io::Medium& picture) {
  if (picture.bytes) {
    MemorySource source(std::as_bytes(std::span(io::bytes_of(picture))));
    return upright_size(read_header(source, picture.path));
  }
  FileSource source(picture.path);
  return upright_size(read_header(source, picture.path));
}

}  // namespace vlmtrain::image
