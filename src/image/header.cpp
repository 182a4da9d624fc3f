#include "image/header.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "image/orientation_tags.h"
#include "image/png_texts.h"
#include "image/upright.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::image {
namespace {

/// Of EXIF or XMP that is read; cameras and editors write a few kilobytes to a megabyte.
constexpr uint32_t kLongestMetadata = 8 << 20;

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

  /// The bytes of metadata at `offset`, as far as they may count: a length out of a damaged file must not become
  /// memory.
  std::vector<uint8_t> metadata(uint64_t offset, uint32_t length) const {
    return bytes(offset, std::min(length, kLongestMetadata));
  }

  bool holds(uint64_t end) const {
    uint8_t last = 0;
    return source_.read(end - 1, {&last, 1});
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

constexpr std::string_view kXmpInJpeg{"http://ns.adobe.com/xap/1.0/\0", 29};

void read_app1(const std::vector<uint8_t>& segment, OrientationTags& tags) {
  const std::string_view text(reinterpret_cast<const char*>(segment.data()), segment.size());
  if (text.starts_with(std::string_view("Exif\0\0", 6))) tags.add_exif(segment);
  if (text.starts_with(kXmpInJpeg)) tags.add_xmp(text.substr(kXmpInJpeg.size()));
}

Header read_jpeg(const HeaderBytes& file) {
  Header header{Format::kJpeg, {}};
  OrientationTags tags;
  bool sized = false;
  for (uint64_t offset = 2;;) {
    // Behind the size only metadata is of interest, and what is wrong there the decoder tells.
    if (sized && !file.tag(offset)) break;
    if (file.big_endian(offset, 1) != 0xFF) {
      if (sized) break;
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
    if (sized && (marker == 0xD9 || marker == 0xDA)) break;
    const uint32_t length = file.big_endian(offset, 2);
    if (marker == 0xD9 || marker == 0xDA || length < 2) {
      if (sized) break;
      throw data_error("{}: a JPEG without a frame header; replace the file or drop the sample", file.name());
    }
    if (starts_frame(marker) && !sized) {
      header.stored = {file.big_endian(offset + 3, 2), file.big_endian(offset + 5, 2)};
      sized = true;
    }
    if (marker == 0xE1) {
      if (sized && !file.holds(offset + length)) break;
      read_app1(file.metadata(offset + 2, length - 2), tags);
    }
    offset += length;
  }
  header.orientation = tags.orientation();
  return header;
}

Header read_png(const HeaderBytes& file) {
  constexpr uint64_t kSignatureBytes = 8;
  constexpr uint64_t kChunkOverhead = 12;  // length, type and checksum
  if (file.tag(kSignatureBytes + 4) != "IHDR") {
    throw data_error("{}: a PNG without IHDR; replace the file or drop the sample", file.name());
  }
  Header header{Format::kPng, {file.big_endian(20, 4), file.big_endian(16, 4)}};
  PngTexts texts;
  // Metadata may come after the pixels, so the chunks are walked to the end; a missing end is the decoder's to report.
  for (uint64_t offset = kSignatureBytes;;) {
    const std::optional<std::string> type = file.tag(offset + 4);
    if (!type || *type == "IEND") break;
    const uint32_t length = file.big_endian(offset, 4);
    if (*type == "eXIf" || PngTexts::is_text(*type)) texts.add(*type, file.metadata(offset + 8, length));
    offset += length + kChunkOverhead;
  }
  header.orientation = texts.orientation();
  return header;
}

/// The size in the bitstream's own header: RFC 6386, 9.1, and the WebP lossless specification, 3.
ImageSize webp_frame_size(const HeaderBytes& file, const std::string& type, uint64_t data) {
  if (type == "VP8 ") return {file.little_endian(data + 8, 2) & 0x3FFF, file.little_endian(data + 6, 2) & 0x3FFF};
  const uint32_t bits = file.little_endian(data + 1, 4);
  return {(bits >> 14 & 0x3FFF) + 1, (bits & 0x3FFF) + 1};
}

Header read_webp(const HeaderBytes& file) {
  Header header{Format::kWebp, {}};
  OrientationTags tags;
  constexpr uint32_t kHasExif = 0x08, kHasXmp = 0x04;  // of the extended format's header; without it there is neither
  uint32_t flags = 0;
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
    if (*type == "VP8X") flags = file.little_endian(data, 1);
    if (*type == "EXIF" && (flags & kHasExif) != 0) tags.add_exif(file.metadata(data, length));
    if (*type == "XMP " && (flags & kHasXmp) != 0) {
      const std::vector<uint8_t> packet = file.metadata(data, length);
      tags.add_xmp({reinterpret_cast<const char*>(packet.data()), packet.size()});
    }
    offset = data + length + length % 2;
  }
  header.orientation = tags.orientation();
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

/// What else is found under the name of a picture; empty where that is not known.
std::string_view foreign_format(const HeaderBytes& file) {
  using namespace std::string_view_literals;
  const std::string start = file.tag(0).value_or("");
  if (file.tag(4) == "ftyp") {
    const std::string brand = file.tag(8).value_or("");
    return brand == "avif" ? "AVIF" : brand.starts_with("hei") || brand == "mif1" ? "HEIC" : "a video";
  }
  constexpr std::array<std::pair<std::string_view, std::string_view>, 7> kFormats{{{"GIF8"sv, "GIF"sv},
                                                                                   {"BM"sv, "BMP"sv},
                                                                                   {"II*\0"sv, "TIFF"sv},
                                                                                   {"MM\0*"sv, "TIFF"sv},
                                                                                   {"%PDF"sv, "PDF"sv},
                                                                                   {"<"sv, "a web page or SVG"sv},
                                                                                   {"vers"sv, "a Git LFS pointer"sv}}};
  for (const auto& [begin, name] : kFormats) {
    if (start.starts_with(begin)) return name;
  }
  return "";
}

Header read_format(const HeaderBytes& file) {
  const std::optional<Format> format = sniff(file);
  if (!format) {
    const auto other = foreign_format(file);
    throw data_error("{}: not a JPEG, PNG or WebP picture{}; {}", file.name(),
                     other.empty() ? "" : fmt::format(" but {}", other),
                     other == "a Git LFS pointer" ? "run `git lfs pull` in its folder" : "convert it to one of these");
  }
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
