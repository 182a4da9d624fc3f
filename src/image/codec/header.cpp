#include "image/codec/header.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "image/codec/orientation.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::image {

namespace {

/// The maximum number of bytes that are read of a segment or chunk of metadata. Cameras and editors
/// write a few kilobytes, rarely a megabyte.
constexpr uint32_t kMaxMetadataBytes = 8 << 20;

/// A reader of the numbers and tags of an image's headers. Throws UserError (kBadData) for reads
/// beyond the end of the file. Both constructor arguments must outlive the object.
class HeaderReader {
 public:
  HeaderReader(ByteSource& source, const std::string& name) : source_(source), image_name_(name) {}

  std::vector<uint8_t> read_bytes(uint64_t offset, size_t count) const {
    std::vector<uint8_t> result(count);
    if (!source_.read(offset, result)) {
      throw data_error("{}: the file ends within its headers; replace the file or drop the sample", image_name_);
    }
    return result;
  }

  uint32_t read_big_endian(uint64_t offset, size_t count) const {
    uint32_t value = 0;
    for (const uint8_t byte : read_bytes(offset, count)) value = value << 8 | byte;
    return value;
  }

  uint32_t read_little_endian(uint64_t offset, size_t count) const {
    uint32_t value = 0;
    const std::vector<uint8_t> little_endian_bytes = read_bytes(offset, count);
    for (size_t i = count; i > 0; --i) value = value << 8 | little_endian_bytes[i - 1];
    return value;
  }

  /// Returns the four characters at `offset`, or nothing if the file ends before their end.
  std::optional<std::string> read_fourcc(uint64_t offset) const {
    std::string result(4, '\0');
    if (!source_.read(offset, {reinterpret_cast<uint8_t*>(result.data()), result.size()})) return std::nullopt;
    return result;
  }

  /// Returns at most kMaxMetadataBytes of the metadata at `offset`: a corrupt length must not
  /// allocate gigabytes.
  std::vector<uint8_t> read_metadata(uint64_t offset, uint32_t length) const {
    return read_bytes(offset, std::min(length, kMaxMetadataBytes));
  }

  /// Returns whether the file has at least `end` bytes.
  bool has_min_size(uint64_t end) const {
    uint8_t last_byte = 0;
    return source_.read(end - 1, {&last_byte, 1});
  }

  const std::string& name() const { return image_name_; }

 private:
  ByteSource& source_;
  const std::string& image_name_;
};

/// Returns whether a marker starts a frame (ITU T.81, table B.1). Three markers in this range do
/// not: DHT (0xC4), JPG (0xC8) and DAC (0xCC).
bool is_frame_marker(uint8_t marker) {
  return marker >= 0xC0 && marker <= 0xCF && marker != 0xC4 && marker != 0xC8 && marker != 0xCC;
}

/// Returns whether a marker stands alone, without a length and a segment (ITU T.81, table B.1):
/// TEM, RST0 to RST7 and SOI.
bool is_standalone_marker(uint8_t marker) {
  return marker == 0x01 || (marker >= 0xD0 && marker <= 0xD8);
}

/// The identifier that XMP in a JPEG's APP1 segment starts with, with its terminating zero.
constexpr std::string_view kXmpPrefix{"http://ns.adobe.com/xap/1.0/\0", 29};

/// Adds the metadata of an APP1 segment, EXIF or XMP.
void add_app1_metadata(const std::vector<uint8_t>& segment, OrientationTags& orientation_tags) {
  const std::string_view text(reinterpret_cast<const char*>(segment.data()), segment.size());
  if (text.starts_with(std::string_view("Exif\0\0", 6))) orientation_tags.add_exif(segment);
  if (text.starts_with(kXmpPrefix)) orientation_tags.replace_xmp(text.substr(kXmpPrefix.size()));
}

ImageHeader read_jpeg_header(const HeaderReader& reader) {
  constexpr uint8_t kApp1 = 0xE1, kEndOfImage = 0xD9, kStartOfScan = 0xDA;
  ImageHeader header{ImageFormat::kJpeg, {}};
  OrientationTags orientation_tags;
  bool has_size = false;
  for (uint64_t offset = 2;;) {  // after the SOI marker
    // After the size only metadata is read, so that errors end the loop; the decoder reports them.
    if (has_size && !reader.read_fourcc(offset)) break;
    if (reader.read_big_endian(offset, 1) != 0xFF) {
      if (has_size) break;
      throw data_error("{}: a damaged JPEG: no marker at byte {}; replace the file or drop the sample", reader.name(),
                       offset);
    }
    const auto marker = static_cast<uint8_t>(reader.read_big_endian(offset + 1, 1));
    if (marker == 0xFF) {  // a fill byte before a marker
      ++offset;
      continue;
    }
    offset += 2;
    if (is_standalone_marker(marker)) continue;
    const bool is_end_of_headers = marker == kEndOfImage || marker == kStartOfScan;
    if (has_size && is_end_of_headers) break;
    const uint32_t length = reader.read_big_endian(offset, 2);
    if (is_end_of_headers || length < 2) {
      if (has_size) break;
      throw data_error("{}: a JPEG without a frame header; replace the file or drop the sample", reader.name());
    }
    if (is_frame_marker(marker) && !has_size) {
      // Length (2 bytes), precision (1), height (2), width (2).
      header.stored_size = {reader.read_big_endian(offset + 3, 2), reader.read_big_endian(offset + 5, 2)};
      has_size = true;
    }
    if (marker == kApp1) {
      if (has_size && !reader.has_min_size(offset + length)) break;
      add_app1_metadata(reader.read_metadata(offset + 2, length - 2), orientation_tags);
    }
    offset += length;
  }
  header.orientation = orientation_tags.orientation();
  return header;
}

ImageHeader read_png_header(const HeaderReader& reader) {
  constexpr uint64_t kSignatureBytes = 8;
  constexpr uint64_t kChunkOverheadBytes = 12;  // length, type and checksum
  if (reader.read_fourcc(kSignatureBytes + 4) != "IHDR") {
    throw data_error("{}: a PNG without IHDR; replace the file or drop the sample", reader.name());
  }
  // IHDR starts with the width and the height, at bytes 16 and 20 of the file.
  ImageHeader header{ImageFormat::kPng, {reader.read_big_endian(20, 4), reader.read_big_endian(16, 4)}};
  PngMetadata metadata;
  // Metadata may follow the pixels, hence all chunks are visited. The decoder reports a missing
  // IEND.
  for (uint64_t offset = kSignatureBytes;;) {
    const std::optional<std::string> type = reader.read_fourcc(offset + 4);
    if (!type || *type == "IEND") break;
    const uint32_t length = reader.read_big_endian(offset, 4);
    if (*type == "eXIf" || PngMetadata::is_text_chunk(*type))
      metadata.add(*type, reader.read_metadata(offset + 8, length));
    offset += length + kChunkOverheadBytes;
  }
  header.orientation = metadata.resolve_orientation();
  return header;
}

/// Returns the size in the header of the bitstream at `data_offset`. Source of the formats: RFC
/// 6386, 9.1 ("VP8 "); WebP lossless specification, 3 ("VP8L"). Both store 14 bits for each side.
ImageSize read_webp_frame_size(const HeaderReader& reader, const std::string& type, uint64_t data_offset) {
  if (type == "VP8 ")
    return {reader.read_little_endian(data_offset + 8, 2) & 0x3FFF,
            reader.read_little_endian(data_offset + 6, 2) & 0x3FFF};
  const uint32_t bits = reader.read_little_endian(data_offset + 1, 4);
  return {(bits >> 14 & 0x3FFF) + 1, (bits & 0x3FFF) + 1};
}

ImageHeader read_webp_header(const HeaderReader& reader) {
  ImageHeader header{ImageFormat::kWebp, {}};
  OrientationTags orientation_tags;
  constexpr uint32_t kExifFlag = 0x08, kXmpFlag = 0x04;  // flags of the extended format's header
  uint32_t flags = 0;
  // "RIFF", the number of bytes that follow, "WEBP", then the chunks.
  const uint64_t end = uint64_t{reader.read_little_endian(4, 4)} + 8;
  for (uint64_t offset = 12; offset < end;) {
    const std::optional<std::string> type = reader.read_fourcc(offset);
    if (!type) break;
    const uint32_t length = reader.read_little_endian(offset + 4, 4);
    const uint64_t data_offset = offset + 8;
    if (*type == "ANIM") {
      throw data_error("{}: animated WebP is not supported; save the frame you need as a still image", reader.name());
    }
    if (*type == "VP8 " || *type == "VP8L") header.stored_size = read_webp_frame_size(reader, *type, data_offset);
    if (*type == "VP8X") flags = reader.read_little_endian(data_offset, 1);
    if (*type == "EXIF" && (flags & kExifFlag) != 0)
      orientation_tags.add_exif(reader.read_metadata(data_offset, length));
    if (*type == "XMP " && (flags & kXmpFlag) != 0) {
      const std::vector<uint8_t> xmp_packet = reader.read_metadata(data_offset, length);
      orientation_tags.replace_xmp({reinterpret_cast<const char*>(xmp_packet.data()), xmp_packet.size()});
    }
    offset = data_offset + length + length % 2;  // chunks are padded to an even size
  }
  header.orientation = orientation_tags.orientation();
  return header;
}

/// A format that is not decoded, and a command that converts it.
struct UnsupportedFormat {
  std::string_view signature;
  std::string_view name;
  std::string_view advice;
};

constexpr std::string_view kConvertAdvice = "convert it to one of these";

/// Formats that files with an image's extension often have. Source of the signatures: the magic
/// file of libmagic.
using namespace std::string_view_literals;  // keep the zeros of the signatures
constexpr auto kUnsupportedFormats = std::to_array<UnsupportedFormat>({
    {"GIF8"sv, "GIF", "convert the frame that you need, for example: magick 'image.gif[0]' image.png"},
    {"BM"sv, "BMP", "convert it, for example: magick image.bmp image.png"},
    {"\0\0\0\x0CjP  "sv, "JPEG 2000", "convert it, for example: opj_decompress -i image.jp2 -o image.png"},
    {"\xFF\x4F\xFF\x51"sv, "JPEG 2000", "convert it, for example: opj_decompress -i image.j2k -o image.png"},
    {"\0\0\0\x0CJXL "sv, "JPEG XL", "convert it, for example: djxl image.jxl image.png"},
    {"\xFF\x0A"sv, "JPEG XL", "convert it, for example: djxl image.jxl image.png"},
    {"%PDF"sv, "PDF", "convert its pages, for example: pdftoppm -png document.pdf page"},
    {"<"sv, "a web page or SVG", kConvertAdvice},
    {"vers"sv, "a Git LFS pointer", "run `git lfs pull` in its folder"},
});

/// Returns the error for a file whose format is not decoded.
UserError make_unsupported_format_error(const HeaderReader& reader) {
  constexpr std::string_view kSupported = "JPEG, PNG, WebP, TIFF, HEIC or AVIF";
  const std::string signature = reader.read_fourcc(0).value_or("") + reader.read_fourcc(4).value_or("");
  if (signature.ends_with("ftyp")) {
    return data_error("{}: not a {} image but a video; convert the frame that you need, for example: {}", reader.name(),
                      kSupported, "ffmpeg -i video.mp4 -frames:v 1 image.png");
  }
  for (const UnsupportedFormat& format : kUnsupportedFormats) {
    if (signature.starts_with(format.signature)) {
      return data_error("{}: not a {} image but {}; {}", reader.name(), kSupported, format.name, format.advice);
    }
  }
  return data_error("{}: not a {} image; {}", reader.name(), kSupported, kConvertAdvice);
}

/// Returns whether the file is a TIFF or a BigTIFF. Two invalid byte orders are accepted by Pillow
/// only.
bool is_tiff_signature(std::string_view signature) {
  return signature == "II*\0"sv || signature == "MM\0*"sv || signature == "II+\0"sv || signature == "MM\0+"sv;
}

/// Returns "HEIC" or "AVIF" for a HEIF file by the brands of its first box, `ftyp`; else "". Throws
/// UserError (kBadData) for image sequences. Source of the brands: ISO/IEC 23008-12, 10; AV1 Image
/// File Format, 8.
std::string detect_heif_format(const HeaderReader& reader) {
  if (reader.read_fourcc(4) != "ftyp") return "";
  constexpr auto kHeicBrands = std::to_array<std::string_view>({"heic", "heix", "heim", "heis", "mif1", "mif2"});
  constexpr auto kSequenceBrands = std::to_array<std::string_view>({"hevc", "hevx", "hevm", "hevs", "msf1", "avis"});
  const auto contains = [](const auto& brands, const std::string& brand) {
    return std::ranges::find(brands, brand) != brands.end();
  };
  const std::string major_brand = reader.read_fourcc(8).value_or("");
  if (contains(kSequenceBrands, major_brand)) {
    throw data_error(
        "{}: an animated HEIC or AVIF is not supported; convert the frame that you need, for example: ffmpeg -i "
        "image.avif -frames:v 1 image.png",
        reader.name());
  }
  // The major brand may be a general one, such as mif1. The compatible brands follow the major brand
  // and its version.
  constexpr uint32_t kMajorBrandOffset = 8, kVersionOffset = 12, kMaxBoxBytes = 1024;
  const uint32_t end = std::min(reader.read_big_endian(0, 4), kMaxBoxBytes);
  bool is_heif = false;
  for (uint32_t offset = kMajorBrandOffset; offset + 4 <= end; offset += 4) {
    if (offset == kVersionOffset) continue;
    const std::string brand = reader.read_fourcc(offset).value_or("");
    if (brand == "avif") return "AVIF";
    is_heif = is_heif || contains(kHeicBrands, brand);
  }
  return is_heif ? "HEIC" : "";
}

/// Detects the format and reads its headers.
ImageHeader detect_and_read_header(ByteSource& source, const HeaderReader& reader) {
  const std::string signature = reader.read_fourcc(0).value_or("");
  if (signature.starts_with("\xFF\xD8\xFF")) return read_jpeg_header(reader);
  if (signature == "\x89PNG") return read_png_header(reader);
  if (signature == "RIFF" && reader.read_fourcc(8) == "WEBP") return read_webp_header(reader);
  if (is_tiff_signature(signature)) return read_tiff_header(source, reader.name());
  if (const std::string format = detect_heif_format(reader); !format.empty()) {
    return read_heif_header(source, format, reader.name());
  }
  throw make_unsupported_format_error(reader);
}

}  // namespace

ImageSize compute_upright_size(const ImageHeader& header) {
  return compute_upright_size(header.stored_size, header.orientation);
}

ImageHeader read_header(ByteSource& source, const std::string& name) {
  const ImageHeader header = detect_and_read_header(source, HeaderReader(source, name));
  const auto [height, width] = header.stored_size;
  if (height == 0 || width == 0) {
    throw data_error("{}: the image's headers contain no size; replace the file or drop the sample", name);
  }
  if (height > kMaxImagePixels / width) {
    throw data_error("{}: an image of {} x {} pixels exceeds the limit of {}; shrink it", name, width, height,
                     kMaxImagePixels);
  }
  return header;
}

}  // namespace vlmtrain::image
