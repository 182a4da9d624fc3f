#include "image/orientation.h"

#include <algorithm>
#include <optional>
#include <string_view>

namespace vlmtrain::image {
namespace {

/// Numbers of a TIFF block, in its byte order; nothing beyond its end.
class TiffBlock {
 public:
  explicit TiffBlock(std::span<const uint8_t> bytes) : bytes_(bytes), little_(!bytes.empty() && bytes[0] == 'I') {}

  std::optional<uint32_t> number(size_t offset, size_t size) const {
    if (offset > bytes_.size() || size > bytes_.size() - offset) return std::nullopt;
    uint32_t value = 0;
    for (size_t i = 0; i < size; ++i) value = value << 8 | bytes_[offset + (little_ ? size - 1 - i : i)];
    return value;
  }

 private:
  std::span<const uint8_t> bytes_;
  bool little_;
};

/// The value of a directory entry at `entry` if it is one byte, one short or one long: it stands in the entry itself.
std::optional<uint32_t> single_value(const TiffBlock& tiff, size_t entry) {
  if (tiff.number(entry + 4, 4) != 1U) return std::nullopt;
  switch (tiff.number(entry + 2, 2).value_or(0)) {
    case 1:
      return tiff.number(entry + 8, 1);
    case 3:
      return tiff.number(entry + 8, 2);
    case 4:
      return tiff.number(entry + 8, 4);
    default:
      return std::nullopt;
  }
}

Orientation orientation_of(uint32_t value) {
  return value >= 1 && value <= 8 ? static_cast<Orientation>(value) : Orientation::kUpright;
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
  if (tiff.number(2, 2) != 42U) return std::nullopt;
  const size_t directory = tiff.number(4, 4).value_or(0);
  const size_t entries = tiff.number(directory, 2).value_or(0);
  for (size_t i = 0; i < entries; ++i) {
    const size_t entry = directory + 2 + i * kEntryBytes;
    const std::optional<uint32_t> tag = tiff.number(entry, 2);
    if (!tag) break;
    if (*tag != kOrientationTag) continue;
    return orientation_of(single_value(tiff, entry).value_or(1));
  }
  return std::nullopt;
}

std::optional<Orientation> xmp_orientation(std::string_view packet) {
  constexpr std::string_view kName = "tiff:Orientation";
  for (size_t at = packet.find(kName); at != std::string_view::npos; at = packet.find(kName, at + 1)) {
    std::string_view rest = packet.substr(at + kName.size());
    if (rest.starts_with("=\"")) {
      rest.remove_prefix(2);
    } else if (rest.starts_with('>')) {
      rest.remove_prefix(1);
    } else {
      continue;
    }
    if (!rest.empty() && rest.front() >= '0' && rest.front() <= '9') {
      return orientation_of(static_cast<uint32_t>(rest.front() - '0'));
    }
  }
  return std::nullopt;
}

}  // namespace vlmtrain::image
