#include "text/unicode/utf8.h"

#include <utf8proc.h>

#include <algorithm>

namespace vlmtrain::text {
namespace {

constexpr char32_t kReplacementCharacter = 0xFFFD;

unsigned char get_byte(std::string_view text, size_t pos) {
  return static_cast<unsigned char>(text[pos]);
}

struct SequenceLayout {
  size_t bytes;
  unsigned char
      min_second_byte;  // the second byte's limits exclude overlong forms, surrogates and what is past U+10FFFF
  unsigned char max_second_byte;
  char32_t lead_bits;
};

std::optional<SequenceLayout> find_sequence_layout(unsigned char lead_byte) {
  if (lead_byte >= 0xC2 && lead_byte <= 0xDF) return SequenceLayout{2, 0x80, 0xBF, lead_byte & 0x1FU};
  if (lead_byte == 0xE0) return SequenceLayout{3, 0xA0, 0xBF, 0};
  if (lead_byte == 0xED) return SequenceLayout{3, 0x80, 0x9F, 0xD};
  if (lead_byte >= 0xE1 && lead_byte <= 0xEF) return SequenceLayout{3, 0x80, 0xBF, lead_byte & 0x0FU};
  if (lead_byte == 0xF0) return SequenceLayout{4, 0x90, 0xBF, 0};
  if (lead_byte >= 0xF1 && lead_byte <= 0xF3) return SequenceLayout{4, 0x80, 0xBF, lead_byte & 0x07U};
  if (lead_byte == 0xF4) return SequenceLayout{4, 0x80, 0x8F, 4};
  return std::nullopt;
}

}  // namespace

Utf8Character read_utf8(std::string_view text, size_t pos) {
  const unsigned char lead_byte = get_byte(text, pos);
  if (lead_byte < 0x80) return {lead_byte, 1, true};
  const auto layout = find_sequence_layout(lead_byte);
  if (!layout) return {kReplacementCharacter, 1, false};
  char32_t code_point = layout->lead_bits;
  for (size_t i = 1; i < layout->bytes; ++i) {
    const unsigned char min_byte = i == 1 ? layout->min_second_byte : 0x80;
    const unsigned char max_byte = i == 1 ? layout->max_second_byte : 0xBF;
    if (pos + i >= text.size() || get_byte(text, pos + i) < min_byte || get_byte(text, pos + i) > max_byte) {
      return {kReplacementCharacter, i, false};
    }
    code_point = code_point << 6U | (get_byte(text, pos + i) & 0x3FU);
  }
  return {code_point, layout->bytes, true};
}

void append_utf8(std::string& out, char32_t code_point) {
  utf8proc_uint8_t bytes[4];
  const auto count = utf8proc_encode_char(static_cast<utf8proc_int32_t>(code_point), bytes);
  out.append(reinterpret_cast<const char*>(bytes), static_cast<size_t>(count));
}

std::optional<size_t> find_invalid_utf8(std::string_view text) {
  for (size_t pos = 0; pos < text.size();) {
    const Utf8Character utf8 = read_utf8(text, pos);
    if (!utf8.valid) return pos;
    pos += utf8.bytes;
  }
  return std::nullopt;
}

std::string replace_invalid_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t pos = 0; pos < text.size();) {
    const Utf8Character utf8 = read_utf8(text, pos);
    if (utf8.valid) {
      out.append(text.substr(pos, utf8.bytes));
    } else {
      append_utf8(out, kReplacementCharacter);
    }
    pos += utf8.bytes;
  }
  return out;
}

bool is_white_space(char32_t code_point) {
  if (code_point < 0x80) return code_point == ' ' || (code_point >= '\t' && code_point <= '\r');
  return code_point == 0x85 || code_point == 0xA0 || code_point == 0x1680 ||
         (code_point >= 0x2000 && code_point <= 0x200A) || code_point == 0x2028 || code_point == 0x2029 ||
         code_point == 0x202F || code_point == 0x205F || code_point == 0x3000;
}

bool is_word_character(char32_t code_point) {
  // Alphabetic also holds symbols: circled and squared letters.
  if ((code_point >= 0x24B6 && code_point <= 0x24E9) || (code_point >= 0x1F130 && code_point <= 0x1F149) ||
      (code_point >= 0x1F150 && code_point <= 0x1F169) || (code_point >= 0x1F170 && code_point <= 0x1F189) ||
      code_point == 0x200C || code_point == 0x200D) {
    return true;
  }
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(code_point));
  return (category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_NL) || category == UTF8PROC_CATEGORY_PC;
}

bool is_numeric(char32_t code_point) {
  if (code_point < 0x80) return code_point >= '0' && code_point <= '9';
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(code_point));
  return category >= UTF8PROC_CATEGORY_ND && category <= UTF8PROC_CATEGORY_NO;
}

}  // namespace vlmtrain::text
