#include "vlmtrain/base/text_format.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <ctime>
#include <iterator>
#include <system_error>

namespace vlmtrain {

std::string format_bytes(int64_t bytes) {
  constexpr std::array kByteUnits{"KiB", "MiB", "GiB", "TiB"};
  if (bytes > -1024 && bytes < 1024) return fmt::format("{} B", bytes);
  double value = static_cast<double>(bytes) / 1024;
  size_t unit_index = 0;
  while (unit_index + 1 < kByteUnits.size() && (value >= 1024 || value <= -1024)) {
    value /= 1024;
    ++unit_index;
  }
  return fmt::format("{:.1f} {}", value, kByteUnits[unit_index]);
}

std::string format_with_commas(int64_t number) {
  if (number < 1000) return fmt::format("{}", number);
  return fmt::format("{},{:03}", format_with_commas(number / 1000), number % 1000);
}

std::string pluralize(int64_t number, const char* noun) {
  return fmt::format("{} {}{}", format_with_commas(number), noun, number == 1 ? "" : "s");
}

std::string format_rounded_count(int64_t number) {
  const auto value = static_cast<double>(number);
  if (value >= 1e9) return fmt::format("{:.2f} billion", value / 1e9);
  if (value >= 1e6) return fmt::format("{:.1f} million", value / 1e6);
  return format_with_commas(number);
}

std::optional<int64_t> parse_int_after_prefix(std::string_view prefix, std::string_view text) {
  if (!text.starts_with(prefix)) return std::nullopt;
  int64_t number = 0;
  const char* const text_end = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data() + prefix.size(), text_end, number);
  return error == std::errc() && end == text_end ? std::optional(number) : std::nullopt;
}

std::string get_current_date() {
  const std::time_t now = std::time(nullptr);
  std::tm local_time{};
  localtime_r(&now, &local_time);
  constexpr int kTmBaseYear = 1900;
  return fmt::format("{:04}-{:02}-{:02}", local_time.tm_year + kTmBaseYear, local_time.tm_mon + 1, local_time.tm_mday);
}

namespace {

struct DecodedCharacter {
  uint32_t code_point;
  size_t num_bytes;  // length of the encoding; 0 for invalid UTF-8
};

/// The properties of a character that follow from its first byte. The limits of the second byte
/// exclude overlong forms, surrogates and code points above U+10FFFF (Unicode 15, table 3-7).
struct LeadByteLayout {
  size_t num_bytes;                                // length of the encoding; 0 for an invalid first byte
  unsigned char min_second_byte, max_second_byte;  // limits of the second byte, inclusive
  uint32_t lead_bits;                              // the highest bits of the code point
};

LeadByteLayout get_lead_byte_layout(unsigned char lead_byte) {
  if (lead_byte >= 0xC2 && lead_byte <= 0xDF) return {2, 0x80, 0xBF, lead_byte & 0x1FU};
  if (lead_byte == 0xE0) return {3, 0xA0, 0xBF, 0};
  if (lead_byte == 0xED) return {3, 0x80, 0x9F, 0xD};
  if (lead_byte >= 0xE1 && lead_byte <= 0xEF) return {3, 0x80, 0xBF, lead_byte & 0x0FU};
  if (lead_byte == 0xF0) return {4, 0x90, 0xBF, 0};
  if (lead_byte >= 0xF1 && lead_byte <= 0xF3) return {4, 0x80, 0xBF, lead_byte & 0x07U};
  if (lead_byte == 0xF4) return {4, 0x80, 0x8F, 4};
  return {0, 0, 0, 0};
}

/// Returns the character at `pos`; its length is 0 for invalid UTF-8.
DecodedCharacter decode_character(std::string_view text, size_t pos) {
  const auto lead_byte = static_cast<unsigned char>(text[pos]);
  if (lead_byte < 0x80) return {lead_byte, 1};
  const LeadByteLayout lead_byte_layout = get_lead_byte_layout(lead_byte);
  if (lead_byte_layout.num_bytes == 0 || lead_byte_layout.num_bytes > text.size() - pos) return {0, 0};
  uint32_t code_point = lead_byte_layout.lead_bits;
  for (size_t i = 1; i < lead_byte_layout.num_bytes; ++i) {
    const auto byte = static_cast<unsigned char>(text[pos + i]);
    if (byte < (i == 1 ? lead_byte_layout.min_second_byte : 0x80) ||
        byte > (i == 1 ? lead_byte_layout.max_second_byte : 0xBF))
      return {0, 0};
    code_point = code_point << 6U | (byte & 0x3FU);
  }
  return {code_point, lead_byte_layout.num_bytes};
}

/// Returns whether a character must be escaped: C0 and C1 control characters, which terminals
/// execute, line breaks (U+2028, U+2029), and characters that change the direction of text (U+202A
/// to U+202E, U+2066 to U+2069), which may hide parts of a message.
bool needs_escape(uint32_t code_point) {
  return code_point < 0x20 || (code_point >= 0x7F && code_point <= 0x9F) ||
         (code_point >= 0x2028 && code_point <= 0x202E) || (code_point >= 0x2066 && code_point <= 0x2069);
}

void append_escape(std::string& out, uint32_t code_point) {
  switch (code_point) {
    case '\n':
      out += "\\n";
      break;
    case '\r':
      out += "\\r";
      break;
    case '\t':
      out += "\\t";
      break;
    default:
      fmt::format_to(std::back_inserter(out), fmt::runtime(code_point < 0x80 ? "\\x{:02x}" : "\\u{:04x}"), code_point);
  }
}

/// Common part of the public functions. `max_characters` counts characters of `text`, not of the
/// result.
std::string escape_unprintable(std::string_view text, bool keep_line_breaks, size_t max_characters) {
  std::string out;
  out.reserve(std::min(text.size(), max_characters));
  size_t count = 0;
  for (size_t pos = 0; pos < text.size(); ++count) {
    if (count == max_characters) return out + "…";
    const DecodedCharacter character = decode_character(text, pos);
    if (character.num_bytes == 0) {
      fmt::format_to(std::back_inserter(out), "\\x{:02x}", static_cast<unsigned char>(text[pos]));
      ++pos;
      continue;
    }
    if (needs_escape(character.code_point) && !(keep_line_breaks && character.code_point == '\n')) {
      append_escape(out, character.code_point);
    } else {
      out += text.substr(pos, character.num_bytes);
    }
    pos += character.num_bytes;
  }
  return out;
}

}  // namespace

bool is_utf8(std::string_view text) {
  for (size_t pos = 0; pos < text.size();) {
    const size_t num_bytes = decode_character(text, pos).num_bytes;
    if (num_bytes == 0) return false;
    pos += num_bytes;
  }
  return true;
}

std::string to_printable(std::string_view text) {
  return escape_unprintable(text, /*keep_line_breaks=*/false, std::string_view::npos);
}

std::string to_printable_lines(std::string_view text) {
  return escape_unprintable(text, /*keep_line_breaks=*/true, std::string_view::npos);
}

std::string to_printable_message(std::string_view text) {
  constexpr std::string_view kContinuationIndent = "  ";
  std::string out;
  const std::string lines = to_printable_lines(text);
  for (size_t pos = 0; pos < lines.size(); ++pos) {
    out += lines[pos];
    if (lines[pos] == '\n' && lines.compare(pos + 1, kContinuationIndent.size(), kContinuationIndent) != 0)
      out += kContinuationIndent;
  }
  return out;
}

std::string make_excerpt(std::string_view text, size_t max_characters) {
  return escape_unprintable(text, /*keep_line_breaks=*/false, max_characters);
}

}  // namespace vlmtrain
