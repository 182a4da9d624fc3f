#include "image/codec/orientation.h"

#include <zlib.h>

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "image/pixel_layout.h"

namespace vlmtrain::image {

namespace {

/// A reader of the numbers of a TIFF block, in its byte order. `bytes` must outlive the object.
class TiffReader {
 public:
  explicit TiffReader(std::span<const uint8_t> bytes)
      : bytes_(bytes), is_little_endian_(!bytes.empty() && bytes[0] == 'I') {}

  /// Returns the number of `size` bytes at `offset`, or nothing if it lies beyond the block's end.
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

/// Returns the value of the directory entry at `entry_offset` if it is a single BYTE (type 1),
/// SHORT (3) or LONG (4), whose value is stored in the entry itself. An entry is a tag (2 bytes), a
/// type (2), a count (4) and a value (4).
std::optional<uint32_t> read_single_value(const TiffReader& tiff, size_t entry_offset) {
  if (tiff.read_number(entry_offset + 4, 4) != 1U) return std::nullopt;
  switch (tiff.read_number(entry_offset + 2, 2).value_or(0)) {
    case 1:
      return tiff.read_number(entry_offset + 8, 1);
    case 3:
      return tiff.read_number(entry_offset + 8, 2);
    case 4:
      return tiff.read_number(entry_offset + 8, 4);
    default:
      return std::nullopt;
  }
}

Orientation to_orientation(uint32_t value) {
  return value >= 1 && value <= 8 ? static_cast<Orientation>(value) : Orientation::kUpright;
}

/// The mapping from upright to stored pixels: upright pixel (y, x) is the stored pixel at index
/// offset + y * row_stride + x * column_stride.
struct PixelStrides {
  int64_t offset;
  int64_t row_stride;
  int64_t column_stride;
};

PixelStrides compute_strides(Orientation orientation, ImageSize stored_size) {
  const auto [height, width] = stored_size;
  const int64_t last_row_offset = (height - 1) * width;
  switch (orientation) {
    case Orientation::kUpright:
      return {0, width, 1};
    case Orientation::kFlipHorizontal:
      return {width - 1, width, -1};
    case Orientation::kRotate180:
      return {last_row_offset + width - 1, -width, -1};
    case Orientation::kFlipVertical:
      return {last_row_offset, -width, 1};
    case Orientation::kTranspose:
      return {0, 1, width};
    case Orientation::kRotate90Clockwise:
      return {last_row_offset, 1, -width};
    case Orientation::kTransverse:
      return {last_row_offset + width - 1, -1, -width};
    case Orientation::kRotate90Counterclockwise:
      break;
  }
  return {width - 1, -1, width};
}

constexpr std::string_view kXmpKeyword = "XML:com.adobe.xmp";
constexpr std::string_view kRawProfileKeyword = "Raw profile type exif";
/// Pillow's MAX_TEXT_CHUNK. Texts that inflate to more bytes are ignored.
constexpr size_t kMaxInflatedTextBytes = 1 << 20;

/// Returns the text before the first zero byte, and removes both from `data`. Returns nothing if
/// there is no zero byte.
std::optional<std::string_view> consume_zero_terminated_string(std::string_view& data) {
  const size_t end = data.find('\0');
  if (end == std::string_view::npos) return std::nullopt;
  const std::string_view text = data.substr(0, end);
  data.remove_prefix(end + 1);
  return text;
}

/// Returns the decompressed text, or nothing if it is invalid or longer than kMaxInflatedTextBytes.
std::optional<std::string> inflate_text(std::string_view compressed_bytes) {
  std::string text(kMaxInflatedTextBytes, '\0');
  z_stream stream{};
  if (inflateInit(&stream) != Z_OK) return std::nullopt;
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(compressed_bytes.data()));
  stream.avail_in = static_cast<uInt>(compressed_bytes.size());
  stream.next_out = reinterpret_cast<Bytef*>(text.data());
  stream.avail_out = static_cast<uInt>(text.size());
  const int status = inflate(&stream, Z_FINISH);
  text.resize(stream.total_out);
  inflateEnd(&stream);
  return status == Z_STREAM_END ? std::optional(std::move(text)) : std::nullopt;
}

/// Returns the text of a chunk of type `chunk` whose data after the keyword is `remaining_data`, or
/// nothing if it is invalid.
std::optional<std::string> decode_text_chunk(std::string_view chunk, std::string_view remaining_data) {
  if (chunk == "tEXt") return std::string(remaining_data);
  if (chunk == "zTXt") {
    if (remaining_data.empty() || remaining_data.front() != 0) return std::nullopt;  // the compression method
    return inflate_text(remaining_data.substr(1));
  }
  // iTXt has a compression flag, a compression method (0), a language and a translated keyword
  // first.
  if (remaining_data.size() < 2 || (remaining_data[0] != 0 && remaining_data[1] != 0)) return std::nullopt;
  const bool is_compressed = remaining_data[0] != 0;
  remaining_data.remove_prefix(2);
  if (!consume_zero_terminated_string(remaining_data) || !consume_zero_terminated_string(remaining_data))
    return std::nullopt;
  return is_compressed ? inflate_text(remaining_data) : std::optional<std::string>(remaining_data);
}

/// Returns the value of a hexadecimal digit, or -1 for other characters.
int parse_hex_digit(char character) {
  if (character >= '0' && character <= '9') return character - '0';
  if (character >= 'a' && character <= 'f') return character - 'a' + 10;
  return character >= 'A' && character <= 'F' ? character - 'A' + 10 : -1;
}

/// Decodes ImageMagick's raw profile: an empty line, the profile's name, its length, then
/// hexadecimal digits in lines. Returns nothing if the first three lines are missing.
std::vector<uint8_t> decode_raw_profile(std::string_view text) {
  for (int line = 0; line < 3; ++line) {
    const size_t end = text.find('\n');
    if (end == std::string_view::npos) return {};
    text.remove_prefix(end + 1);
  }
  std::vector<uint8_t> bytes;
  int high_digit = -1;
  for (const char character : text) {
    const int digit = parse_hex_digit(character);
    if (digit < 0) continue;
    if (high_digit < 0) {
      high_digit = digit;
    } else {
      bytes.push_back(static_cast<uint8_t>(high_digit << 4 | digit));
      high_digit = -1;
    }
  }
  return bytes;
}

}  // namespace

std::optional<Orientation> parse_exif_orientation(std::span<const uint8_t> exif) {
  constexpr std::string_view kPrefix{"Exif\0\0", 6};
  if (exif.size() >= kPrefix.size() && std::equal(kPrefix.begin(), kPrefix.end(), exif.begin())) {
    exif = exif.subspan(kPrefix.size());
  }
  constexpr uint32_t kOrientationTag = 0x0112;
  constexpr size_t kDirectoryEntryBytes = 12;
  const TiffReader tiff(exif);
  if (tiff.read_number(2, 2) != 42U) return std::nullopt;  // TIFF's magic number
  const size_t directory_offset = tiff.read_number(4, 4).value_or(0);
  const size_t num_entries = tiff.read_number(directory_offset, 2).value_or(0);
  for (size_t i = 0; i < num_entries; ++i) {
    const size_t entry_offset = directory_offset + 2 + i * kDirectoryEntryBytes;
    const std::optional<uint32_t> tag = tiff.read_number(entry_offset, 2);
    if (!tag) break;
    if (*tag != kOrientationTag) continue;
    return to_orientation(read_single_value(tiff, entry_offset).value_or(1));
  }
  return std::nullopt;
}

std::optional<Orientation> parse_xmp_orientation(std::string_view packet) {
  constexpr std::string_view kOrientationProperty = "tiff:Orientation";
  for (size_t position = packet.find(kOrientationProperty); position != std::string_view::npos;
       position = packet.find(kOrientationProperty, position + 1)) {
    std::string_view remaining_data = packet.substr(position + kOrientationProperty.size());
    if (remaining_data.starts_with("=\"")) {
      remaining_data.remove_prefix(2);
    } else if (remaining_data.starts_with('>')) {
      remaining_data.remove_prefix(1);
    } else {
      continue;
    }
    if (!remaining_data.empty() && remaining_data.front() >= '0' && remaining_data.front() <= '9') {
      return to_orientation(static_cast<uint32_t>(remaining_data.front() - '0'));
    }
  }
  return std::nullopt;
}

ImageSize compute_upright_size(ImageSize stored_size, Orientation orientation) {
  if (swaps_axes(orientation)) return {stored_size.width, stored_size.height};
  return stored_size;
}

void write_upright_rgb_planes(const InterleavedPixels& rgb, Orientation orientation, uint8_t* planes) {
  const PixelStrides strides = compute_strides(orientation, rgb.size);
  const auto [height, width] = compute_upright_size(rgb.size, orientation);
  uint8_t* red = planes;
  uint8_t* green = red + height * width;
  uint8_t* blue = green + height * width;
  int64_t out = 0;
  for (int64_t y = 0; y < height; ++y) {
    const uint8_t* pixel = &rgb.samples[(strides.offset + y * strides.row_stride) * 3];
    if (strides.column_stride == 1) {  // contiguous pixels: vectorized
      deinterleave_channels(pixel, width, {red + out, green + out, blue + out});
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

void write_upright_gray_plane(const InterleavedPixels& gray, Orientation orientation, uint8_t* plane) {
  const PixelStrides strides = compute_strides(orientation, gray.size);
  const auto [height, width] = compute_upright_size(gray.size, orientation);
  for (int64_t y = 0; y < height; ++y) {
    const uint8_t* source = &gray.samples[strides.offset + y * strides.row_stride];
    for (int64_t x = 0; x < width; ++x) *plane++ = source[x * strides.column_stride];
  }
}

void PngMetadata::add(std::string_view chunk, const std::vector<uint8_t>& data) {
  if (chunk == "eXIf") {
    orientation_tags_.replace_exif(data);
    has_exif_ = true;
    return;
  }
  std::string_view remaining_data(reinterpret_cast<const char*>(data.data()), data.size());
  const std::optional<std::string_view> key = consume_zero_terminated_string(remaining_data);
  if (key != kXmpKeyword && key != kRawProfileKeyword) return;
  constexpr int kMaxTextChunks = 64;  // Pillow's limit of memory for texts, MAX_TEXT_MEMORY / MAX_TEXT_CHUNK
  if (++num_relevant_texts_ > kMaxTextChunks) return;
  if (auto text = decode_text_chunk(chunk, remaining_data)) add_text(*key, *std::move(text));
}

void PngMetadata::add_text(std::string_view key, std::string text) {
  if (key == kXmpKeyword) {
    orientation_tags_.replace_xmp(text);
  } else {
    raw_profile_ = std::move(text);
  }
}

Orientation PngMetadata::resolve_orientation() {
  if (!has_exif_ && !raw_profile_.empty()) orientation_tags_.replace_exif(decode_raw_profile(raw_profile_));
  return orientation_tags_.orientation();
}

}  // namespace vlmtrain::image
