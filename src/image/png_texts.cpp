#include "image/png_texts.h"

#include <zlib.h>

#include <optional>
#include <utility>

namespace vlmtrain::image {
namespace {

constexpr std::string_view kXmpKey = "XML:com.adobe.xmp";
constexpr std::string_view kRawProfileKey = "Raw profile type exif";
/// Pillow's MAX_TEXT_CHUNK: what inflates beyond it is not read.
constexpr size_t kMaxTextBytes = 1 << 20;

/// What stands before the first zero byte, which is taken off with it.
std::optional<std::string_view> take_field(std::string_view& data) {
  const size_t end = data.find('\0');
  if (end == std::string_view::npos) return std::nullopt;
  const std::string_view field = data.substr(0, end);
  data.remove_prefix(end + 1);
  return field;
}

std::optional<std::string> inflate_text(std::string_view compressed_bytes) {
  std::string text(kMaxTextBytes, '\0');
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

/// The text of a chunk behind its keyword.
std::optional<std::string> read_text(std::string_view chunk, std::string_view remaining) {
  if (chunk == "tEXt") return std::string(remaining);
  if (chunk == "zTXt") {
    if (remaining.empty() || remaining.front() != 0) return std::nullopt;
    return inflate_text(remaining.substr(1));
  }
  if (remaining.size() < 2 || (remaining[0] != 0 && remaining[1] != 0)) return std::nullopt;
  const bool is_compressed = remaining[0] != 0;
  remaining.remove_prefix(2);
  if (!take_field(remaining) || !take_field(remaining)) return std::nullopt;  // language, translated keyword
  return is_compressed ? inflate_text(remaining) : std::optional<std::string>(remaining);
}

int hex_digit(char character) {
  if (character >= '0' && character <= '9') return character - '0';
  if (character >= 'a' && character <= 'f') return character - 'a' + 10;
  return character >= 'A' && character <= 'F' ? character - 'A' + 10 : -1;
}

/// Three lines (nothing, the name, the length), then bytes in hexadecimal.
std::vector<uint8_t> decode_raw_profile(std::string_view text) {
  for (int line = 0; line < 3; ++line) {
    const size_t end = text.find('\n');
    if (end == std::string_view::npos) return {};
    text.remove_prefix(end + 1);
  }
  std::vector<uint8_t> bytes;
  int high_digit = -1;
  for (const char character : text) {
    const int digit = hex_digit(character);
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

void PngMetadata::add(std::string_view chunk, const std::vector<uint8_t>& data) {
  if (chunk == "eXIf") {
    tags_.replace_exif(data);
    has_exif_ = true;
    return;
  }
  std::string_view remaining(reinterpret_cast<const char*>(data.data()), data.size());
  const std::optional<std::string_view> key = take_field(remaining);
  if (key != kXmpKey && key != kRawProfileKey) return;
  constexpr int kMaxTexts = 64;  // as Pillow's MAX_TEXT_MEMORY
  if (++num_texts_ > kMaxTexts) return;
  if (auto text = read_text(chunk, remaining)) add_text(*key, *std::move(text));
}

void PngMetadata::add_text(std::string_view key, std::string text) {
  if (key == kXmpKey) {
    tags_.add_xmp(text);
  } else {
    raw_profile_ = std::move(text);
  }
}

Orientation PngMetadata::orientation() {
  if (!has_exif_ && !raw_profile_.empty()) tags_.replace_exif(decode_raw_profile(raw_profile_));
  return tags_.orientation();
}

}  // namespace vlmtrain::image
