#include "vlmtrain/image/decode.h"

#include <ATen/ops/empty.h>

#include <fstream>
#include <vector>

#include "image/codecs.h"
#include "image/header.h"
#include "vlmtrain/base/error.h"

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

/// Where the upright picture's pixels lie in the stored one: (y, x) at first + y * down + x * right, counted in pixels.
struct Walk {
  int64_t first;
  int64_t down;
  int64_t right;
};

Walk upright_walk(Orientation orientation, ImageSize stored) {
  const auto [height, width] = stored;
  const int64_t last_row = (height - 1) * width;
  switch (orientation) {
    case Orientation::kUpright:
      return {0, width, 1};
    case Orientation::kMirrored:
      return {width - 1, width, -1};
    case Orientation::kHalfTurn:
      return {last_row + width - 1, -width, -1};
    case Orientation::kFlipped:
      return {last_row, -width, 1};
    case Orientation::kTransposed:
      return {0, 1, width};
    case Orientation::kQuarterTurn:
      return {last_row, 1, -width};
    case Orientation::kTransverse:
      return {last_row + width - 1, -1, -width};
    case Orientation::kThreeQuarterTurn:
      break;
  }
  return {width - 1, -1, width};
}

/// Interleaved and as stored to planes and upright.
at::Tensor upright_planes(const StoredPixels& rgb, const Header& header) {
  const auto [height, width] = upright_size(header);
  const Walk walk = upright_walk(header.orientation, rgb.size);
  at::Tensor result = at::empty({3, height, width}, at::kByte);
  uint8_t* red = result.mutable_data_ptr<uint8_t>();
  uint8_t* green = red + height * width;
  uint8_t* blue = green + height * width;
  int64_t out = 0;
  for (int64_t y = 0; y < height; ++y) {
    const uint8_t* pixel = &rgb.samples[(walk.first + y * walk.down) * 3];
    for (int64_t x = 0; x < width; ++x, ++out) {
      const uint8_t* from = pixel + x * walk.right * 3;
      red[out] = from[0];
      green[out] = from[1];
      blue[out] = from[2];
    }
  }
  return result;
}

std::vector<std::byte> read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file || !std::filesystem::is_regular_file(path)) {
    throw data_error("{}: the picture cannot be opened; check the path and data.image_root", path.string());
  }
  std::vector<std::byte> bytes(static_cast<size_t>(file.tellg()));
  file.seekg(0);
  file.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  if (!file) throw data_error("{}: the picture cannot be read to its end; check the disk or network", path.string());
  return bytes;
}

}  // namespace

at::Tensor decode_image(std::span<const std::byte> bytes, const std::string& name) {
  MemorySource source(bytes);
  const Header header = read_header(source, name);
  return upright_planes(decode_stored(bytes, header, name), header);
}

at::Tensor decode_image_file(const std::filesystem::path& path) {
  return decode_image(read_file(path), path.string());
}

ImageSize read_image_size(const std::filesystem::path& path) {
  FileSource source(path);
  return upright_size(read_header(source, path.string()));
}

}  // namespace vlmtrain::image
