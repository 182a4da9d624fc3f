#include "image/header.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <vector>

#include "image/upright.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::image {
namespace {

/// Numbers and texts of a header; whatever lies beyond the file's end is a data error.
class HeaderBytes {
 public:
  HeaderBytes(ByteSource& source, const std::string& name) : source_(source), name_(name) {}

  std::vector<uint8_t> bytes(uint64_t offset, size_t count) const {
    std::vector<uint8_t> result(count);
    if (!source_.read(offset, result)) {
      throw data_error("{}: the file ends within its headers; replace the file or drop the sample", name_);
    }
    return result;
  }

  uint32_t big_endian(uint64_t offset, size_t count) const {
    uint32_t value = 0;
    for (const uint8_t byte : bytes(offset, count)) value = value << 8 | byte;
    return value;
  }

  uint32_t little_endian(uint64_t offset, size_t count) const {
    uint32_t value = 0;
    const std::vector<uint8_t> read = bytes(offset, count);
    for (size_t i = count; i > 0; --i) value = value << 8 | read[i - 1];
    return value;
  }

  /// The four characters at `offset`, or nothing where the file ends before them.
  std::optional<std::string> tag(uint64_t offset) const {
    std::string result(4, '\0');
    if (!source_.read(offset, {reinterpret_cast<uint8_t*>(result.data()), result.size()})) return std::nullopt;
    return result;
  }

  /// The orientation in the EXIF data at `offset`. The tag stands in the first directory, so a start is enough: a
  /// length out of a damaged file must not become memory.
  Orientation orientation(uint64_t offset, uint32_t length) const {
    constexpr uint32_t kEnough = 1 << 16;
    return exif_orientation(bytes(offset, std::min(length, kEnough)));
  }

  const std::string& name() const { return name_; }

 private:
  ByteSource& source_;
  const std::string& name_;
};

/// ITU T.81, B.1.1: the markers that start a frame; between their numbers stand three tables.
bool starts_frame(uint8_t marker) {
  return marker >= 0xC0 && marker <= 0xCF && marker != 0xC4 && marker != 0xC8 && marker != 0xCC;
}

bool has_no_length(uint8_t marker) {
  return marker == 0x01 || (marker >= 0xD0 && marker <= 0xD8);
}

Header read_jpeg(const HeaderBytes& file) {
  Header header{Format::kJpeg, {}};
  bool exif_seen = false;
  for (uint64_t offset = 2;;) {
    if (file.big_endian(offset, 1) != 0xFF) {
      throw data_error("{}: a damaged JPEG: no marker at byte {}; replace the file or drop the sample", file.name(),
                       offset);
    }
    const auto marker = static_cast<uint8_t>(file.big_endian(offset + 1, 1));
    if (marker == 0xFF) {
      ++offset;
      continue;
    }
    offset += 2;
    if (has_no_length(marker)) continue;
    const uint32_t length = file.big_endian(offset, 2);
    if (starts_frame(marker)) {
      header.stored = {file.big_endian(offset + 3, 2), file.big_endian(offset + 5, 2)};
      return header;
    }
    if (marker == 0xD9 || marker == 0xDA || length < 2) {
      throw data_error("{}: a JPEG without a frame header; replace the file or drop the sample", file.name());
    }
    const bool holds_exif = marker == 0xE1 && length >= 8 && file.tag(offset + 2) == "Exif";
    if (holds_exif && !exif_seen) {
      header.orientation = file.orientation(offset + 2, length - 2);
      exif_seen = true;
    }
    offset += length;
  }
}

Header read_png(const HeaderBytes& file) {
  constexpr uint64_t kSignatureBytes = 8;
  constexpr uint64_t kChunkOverhead = 12;  // length, type and checksum
  if (file.tag(kSignatureBytes + 4) != "IHDR") {
    throw data_error("{}: a PNG without IHDR; replace the file or drop the sample", file.name());
  }
  Header header{Format::kPng, {file.big_endian(20, 4), file.big_endian(16, 4)}};
  // eXIf may come after the pixels, so the chunks are walked to the end; a missing end is the decoder's to report.
  for (uint64_t offset = kSignatureBytes;;) {
    const std::optional<std::string> type = file.tag(offset + 4);
    if (!type || *type == "IEND") return header;
    const uint32_t length = file.big_endian(offset, 4);
    if (*type == "eXIf") {
      header.orientation = file.orientation(offset + 8, length);
      return header;
    }
    offset += length + kChunkOverhead;
  }
}

/// The size in the bitstream's own header: RFC 6386, 9.1, and the WebP lossless specification, 3.
ImageSize webp_frame_size(const HeaderBytes& file, const std::string& type, uint64_t data) {
  if (type == "VP8 ") return {file.little_endian(data + 8, 2) & 0x3FFF, file.little_endian(data + 6, 2) & 0x3FFF};
  const uint32_t bits = file.little_endian(data + 1, 4);
  return {(bits >> 14 & 0x3FFF) + 1, (bits & 0x3FFF) + 1};
}

Header read_webp(const HeaderBytes& file) {
  Header header{Format::kWebp, {}};
  const uint64_t end = uint64_t{file.little_endian(4, 4)} + 8;
  for (uint64_t offset = 12; offset < end;) {
    const std::optional<std::string> type = file.tag(offset);
    if (!type) break;
    const uint32_t length = file.little_endian(offset + 4, 4);
    const uint64_t data = offset + 8;
    if (*type == "ANIM") {
      throw data_error("{}: an animated WebP; save the frame that is meant as a still picture", file.name());
    }
    if (*type == "VP8 " || *type == "VP8L") header.stored = webp_frame_size(file, *type, data);
    if (*type == "EXIF") header.orientation = file.orientation(data, length);
    offset = data + length + length % 2;
  }
  return header;
}

std::optional<Format> sniff(const HeaderBytes& file) {
  const std::optional<std::string> start = file.tag(0);
  if (!start) return std::nullopt;
  if (start->starts_with("\xFF\xD8\xFF")) return Format::kJpeg;
  if (start == "\x89PNG") return Format::kPng;
  if (start == "RIFF" && file.tag(8) == "WEBP") return Format::kWebp;
  return std::nullopt;
}

Header read_format(const HeaderBytes& file) {
  const std::optional<Format> format = sniff(file);
  if (!format) throw data_error("{}: not a JPEG, PNG or WebP picture; convert it to one of these", file.name());
  switch (*format) {
    case Format::kJpeg:
      return read_jpeg(file);
    case Format::kPng:
      return read_png(file);
    case Format::kWebp:
      break;
  }
  return read_webp(file);
}

}  // namespace

ImageSize upright_size(const Header& header) {
  return upright_size(header.stored, header.orientation);
}

Header read_header(ByteSource& source, const std::string& name) {
  const Header header = read_format(HeaderBytes(source, name));
  const auto [height, width] = header.stored;
  if (height == 0 || width == 0) {
    throw data_error("{}: the picture's headers tell no size; replace the file or drop the sample", name);
  }
  if (height > kMaxImagePixels / width) {
    throw data_error("{}: a picture of {} x {} pixels is beyond the limit of {}; shrink it", name, width, height,
                     kMaxImagePixels);
  }
  return header;
}

}  // namespace vlmtrain::image
