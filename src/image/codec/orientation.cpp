#include "image/codec/orientation.h"

#include <algorithm>
#include <optional>
#include <string_view>

#include "image/pixel_layout.h"

namespace vlmtrain::image {

namespace {

/// The numbers of a TIFF block, in its byte order. Returns nothing beyond its end.
class TiffBlock {
 public:
  explicit TiffBlock(std::span<const uint8_t> bytes)
      : bytes_(bytes), is_little_endian_(!bytes.empty() && bytes[0] == 'I') {}

  std::optional<uint32_t> read_number(size_t offset, size_t size) const {
    if (offset > bytes_.size() || size > bytes_.size() - offset) return std::nullopt;
    uint32_t value = 0;
    for (size_t i = 0; i < size; ++i) value = value << 8 | bytes_[offset + (is_little_endian_ ? size - 1 - i : i)];
    return value;
  }

 private:
  std::span<const uint8_t> bytes_;
  bool is_little_endian_;
};

/// Returns the value of the directory entry at `entry` if it is a single byte, short or long, which
/// is stored in the entry itself.
std::optional<uint32_t> read_single_value(const TiffBlock& tiff, size_t entry) {
  if (tiff.read_number(entry + 4, 4) != 1U) return std::nullopt;
  switch (tiff.read_number(entry + 2, 2).value_or(0)) {
    case 1:
      return tiff.read_number(entry + 8, 1);
    case 3:
      return tiff.read_number(entry + 8, 2);
    case 4:
      return tiff.read_number(entry + 8, 4);
    default:
      return std::nullopt;
  }
}

Orientation to_orientation(uint32_t value) {
  return value >= 1 && value <= 8 ? static_cast<Orientation>(value) : Orientation::kUpright;
}

/// The mapping from upright to stored pixels: pixel (y, x) is at index first + y * down + x *
/// right.
struct PixelStrides {
  int64_t offset;
  int64_t row_stride;
  int64_t column_stride;
};

PixelStrides compute_strides(Orientation orientation, ImageSize stored) {
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

}  // namespace

std::optional<Orientation> exif_orientation(std::span<const uint8_t> exif) {
  constexpr std::string_view kPrefix{"Exif\0\0", 6};
  if (exif.size() >= kPrefix.size() && std::equal(kPrefix.begin(), kPrefix.end(), exif.begin())) {
    exif = exif.subspan(kPrefix.size());
  }
  constexpr uint32_t kOrientationTag = 0x0112;
  constexpr size_t kEntryBytes = 12;
  const TiffBlock tiff(exif);
  if (tiff.read_number(2, 2) != 42U) return std::nullopt;
  const size_t directory = tiff.read_number(4, 4).value_or(0);
  const size_t entries = tiff.read_number(directory, 2).value_or(0);
  for (size_t i = 0; i < entries; ++i) {
    const size_t entry = directory + 2 + i * kEntryBytes;
    const std::optional<uint32_t> tag = tiff.read_number(entry, 2);
    if (!tag) break;
    if (*tag != kOrientationTag) continue;
    return to_orientation(read_single_value(tiff, entry).value_or(1));
  }
  return std::nullopt;
}

std::optional<Orientation> xmp_orientation(std::string_view packet) {
  constexpr std::string_view kName = "tiff:Orientation";
  for (size_t position = packet.find(kName); position != std::string_view::npos;
       position = packet.find(kName, position + 1)) {
    std::string_view remaining = packet.substr(position + kName.size());
    if (remaining.starts_with("=\"")) {
      remaining.remove_prefix(2);
    } else if (remaining.starts_with('>')) {
      remaining.remove_prefix(1);
    } else {
      continue;
    }
    if (!remaining.empty() && remaining.front() >= '0' && remaining.front() <= '9') {
      return to_orientation(static_cast<uint32_t>(remaining.front() - '0'));
    }
  }
  return std::nullopt;
}

ImageSize get_upright_size(ImageSize stored, Orientation orientation) {
  if (swaps_axes(orientation)) return {stored.width, stored.height};
  return stored;
}

void write_upright_planes(const StoredPixels& rgb, Orientation orientation, uint8_t* planes) {
  const PixelStrides strides = compute_strides(orientation, rgb.size);
  const auto [height, width] = get_upright_size(rgb.size, orientation);
  uint8_t* red = planes;
  uint8_t* green = red + height * width;
  uint8_t* blue = green + height * width;
  int64_t out = 0;
  for (int64_t y = 0; y < height; ++y) {
    const uint8_t* pixel = &rgb.samples[(strides.offset + y * strides.row_stride) * 3];
    if (strides.column_stride == 1) {
      split_channels(pixel, width, {red + out, green + out, blue + out});
      out += width;
      continue;
    }
    for (int64_t x = 0; x < width; ++x, ++out) {
      const uint8_t* source = pixel + x * strides.column_stride * 3;
      red[out] = source[0];
      green[out] = source[1];
      blue[out] = source[2];
    }
  }
}

void write_upright_plane(const StoredPixels& gray, Orientation orientation, uint8_t* plane) {
  const PixelStrides strides = compute_strides(orientation, gray.size);
  const auto [height, width] = get_upright_size(gray.size, orientation);
  for (int64_t y = 0; y < height; ++y) {
    const uint8_t* source = &gray.samples[strides.offset + y * strides.row_stride];
    for (int64_t x = 0; x < width; ++x) *plane++ = source[x * strides.column_stride];
  }
}

}  // namespace vlmtrain::image
