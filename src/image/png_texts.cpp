#include "image/png_texts.h"

#include <zlib.h>

#include <optional>
#include <utility>

namespace vlmtrain::image {
namespace {

constexpr std::string_view kXmp = "XML:com.adobe.xmp";
constexpr std::string_view kRawProfile = "Raw profile type exif";
/// Pillow's MAX_TEXT_CHUNK: what inflates beyond it is not read.
constexpr size_t kLongestText = 1 << 20;

/// What stands before the first zero byte, which is taken off with it.
std::optional<std::string_view> take_field(std::string_view& data) {
  const size_t end = data.find('\0');
  if (end == std::string_view::npos) return std::nullopt;
  const std::string_view field = data.substr(0, end);
  data.remove_prefix(end + 1);
  return field;
}

std::optional<std::string> inflated(std::string_view compressed) {
  std::string text(kLongestText, '\0');
  z_stream stream{};
  if (inflateInit(&stream) != Z_OK) return std::nullopt;
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(compressed.data()));
  stream.avail_in = static_cast<uInt>(compressed.size());
  stream.next_out = reinterpret_cast<Bytef*>(text.data());
  stream.avail_out = static_cast<uInt>(text.size());
  const int status = inflate(&stream, Z_FINISH);
  text.resize(stream.total_out);
  inflateEnd(&stream);
  return status == Z_STREAM_END ? std::optional(std::move(text)) : std::nullopt;
}

/// The text of a chunk behind its keyword.
std::optional<std::string> text_of(std::string_view chunk, std::string_view rest) {
  if (chunk == "tEXt") return std::string(rest);
  if (chunk == "zTXt") {
    if (rest.empty() || rest.front() != 0) return std::nullopt;
    return inflated(rest.substr(1));
  }
  if (rest.size() < 2 || (rest[0] != 0 && rest[1] != 0)) return std::nullopt;
  const bool compressed = rest[0] != 0;
  rest.remove_prefix(2);
  if (!take_field(rest) || !take_field(rest)) return std::nullopt;  // language, translated keyword
  return compressed ? inflated(rest) : std::optional<std::string>(rest);
}

int hex_digit(char letter) {
  if (letter >= '0' && letter <= '9') return letter - '0';
  if (letter >= 'a' && letter <= 'f') return letter - 'a' + 10;
  return letter >= 'A' && letter <= 'F' ? letter - 'A' + 10 : -1;
}

/// Three lines (nothing, the name, the length), then bytes in hexadecimal.
std::vector<uint8_t> raw_profile_bytes(std::string_view text) {
  for (int line = 0; line < 3; ++line) {
    const size_t end = text.find('\n');
    if (end == std::string_view::npos) return {};
    text.remove_prefix(end + 1);
  }
  std::vector<uint8_t> bytes;
  int high = -1;
  for (const char letter : text) {
    const int digit = hex_digit(letter);
    if (digit < 0) continue;
    if (high < 0) {
      high = digit;
    } else {
      bytes.push_back(static_cast<uint8_t>(high << 4 | digit));
      high = -1;
    }
  }
  return bytes;
}

}  // namespace

void PngTexts::add(std::string_view chunk, const std::vector<uint8_t>& data) {
  if (chunk == "eXIf") {
    tags_.replace_exif(data);
    has_exif_ = true;
    return;
  }
  std::string_view rest(reinterpret_cast<const char*>(data.data()), data.size());
  const std::optional<std::string_view> key = take_field(rest);
  if (key != kXmp && key != kRawProfile) return;
  constexpr int kMostTexts = 64;  // as Pillow's MAX_TEXT_MEMORY
  if (++texts_ > kMostTexts) return;
  if (auto text = text_of(chunk, rest)) add_text(*key, *std::move(text));
}

void PngTexts::add_text(std::string_view key, std::string text) {
  if (key == kXmp) {
    tags_.add_xmp(text);
  } else {
    raw_profile_ = std::move(text);
  }
}

Orientation PngTexts::orientation() {
  if (!has_exif_ && !raw_profile_.empty()) tags_.replace_exif(raw_profile_bytes(raw_profile_));
  return tags_.orientation();
}

}  // namespace vlmtrain::image
