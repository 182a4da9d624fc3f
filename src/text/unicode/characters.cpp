#include "text/unicode/characters.h"

#include <utf8proc.h>

#include <cstring>

namespace vlmtrain::text {

namespace {

constexpr char32_t kReplacementCharacter = 0xFFFD;

/// Returns the byte at `pos` as an unsigned value.
unsigned char get_unsigned_byte(std::string_view text, size_t pos) {
  return static_cast<unsigned char>(text[pos]);
}

/// The layout of a UTF-8 sequence by its lead byte (Unicode 15, table 3-7).
struct Utf8SequenceLayout {
  size_t num_bytes;
  unsigned char min_second_byte;  // the limits exclude overlong forms, surrogates and code points above U+10FFFF
  unsigned char max_second_byte;
  char32_t lead_bits;  // the bits of the code point in the lead byte
};

/// Returns the layout of sequences with this lead byte, or nothing if it is not a valid lead byte.
std::optional<Utf8SequenceLayout> find_utf8_sequence_layout(unsigned char lead_byte) {
  if (lead_byte >= 0xC2 && lead_byte <= 0xDF) return Utf8SequenceLayout{2, 0x80, 0xBF, lead_byte & 0x1FU};
  if (lead_byte == 0xE0) return Utf8SequenceLayout{3, 0xA0, 0xBF, 0};
  if (lead_byte == 0xED) return Utf8SequenceLayout{3, 0x80, 0x9F, 0xD};
  if (lead_byte >= 0xE1 && lead_byte <= 0xEF) return Utf8SequenceLayout{3, 0x80, 0xBF, lead_byte & 0x0FU};
  if (lead_byte == 0xF0) return Utf8SequenceLayout{4, 0x90, 0xBF, 0};
  if (lead_byte >= 0xF1 && lead_byte <= 0xF3) return Utf8SequenceLayout{4, 0x80, 0xBF, lead_byte & 0x07U};
  if (lead_byte == 0xF4) return Utf8SequenceLayout{4, 0x80, 0x8F, 4};
  return std::nullopt;
}

}  // namespace

Utf8Character read_utf8(std::string_view text, size_t pos) {
  const unsigned char lead_byte = get_unsigned_byte(text, pos);
  if (lead_byte < 0x80) return {lead_byte, 1, true};
  const auto layout = find_utf8_sequence_layout(lead_byte);
  if (!layout) return {kReplacementCharacter, 1, false};
  char32_t code_point = layout->lead_bits;
  for (size_t i = 1; i < layout->num_bytes; ++i) {
    const unsigned char min_byte = i == 1 ? layout->min_second_byte : 0x80;
    const unsigned char max_byte = i == 1 ? layout->max_second_byte : 0xBF;
    if (pos + i >= text.size() || get_unsigned_byte(text, pos + i) < min_byte ||
        get_unsigned_byte(text, pos + i) > max_byte) {
      return {kReplacementCharacter, i, false};
    }
    code_point = code_point << 6U | (get_unsigned_byte(text, pos + i) & 0x3FU);
  }
  return {code_point, layout->num_bytes, true};
}

void append_utf8(std::string& out, char32_t code_point) {
  utf8proc_uint8_t bytes[4];
  const auto count = utf8proc_encode_char(static_cast<utf8proc_int32_t>(code_point), bytes);
  out.append(reinterpret_cast<const char*>(bytes), static_cast<size_t>(count));
}

std::optional<size_t> find_invalid_utf8(std::string_view text) {
  for (size_t pos = 0; pos < text.size();) {
    const Utf8Character utf8_character = read_utf8(text, pos);
    if (!utf8_character.is_valid) return pos;
    pos += utf8_character.num_bytes;
  }
  return std::nullopt;
}

std::string replace_invalid_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t pos = 0; pos < text.size();) {
    const Utf8Character utf8_character = read_utf8(text, pos);
    if (utf8_character.is_valid) {
      out.append(text.substr(pos, utf8_character.num_bytes));
    } else {
      append_utf8(out, kReplacementCharacter);
    }
    pos += utf8_character.num_bytes;
  }
  return out;
}

size_t find_next_character(std::string_view text, size_t pos) {
  return pos + read_utf8(text, pos).num_bytes;
}

size_t find_previous_character(std::string_view text, size_t pos) {
  do {
    --pos;
  } while (pos > 0 && (static_cast<unsigned char>(text[pos]) & 0xC0U) == 0x80U);
  return pos;
}

size_t to_byte_offset(std::string_view text, size_t index) {
  size_t pos = 0;
  for (; index > 0 && pos < text.size(); --index) pos = find_next_character(text, pos);
  return pos;
}

size_t find_substring(std::string_view text, std::string_view needle, size_t pos) {
  if (pos > text.size()) return std::string_view::npos;
  if (needle.empty()) return pos;
  const void* match = memmem(text.data() + pos, text.size() - pos, needle.data(), needle.size());
  return match == nullptr ? std::string_view::npos : static_cast<size_t>(static_cast<const char*>(match) - text.data());
}

namespace {

/// Returns the general category of Unicode, such as Lu.
utf8proc_category_t get_general_category(char32_t character) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(character));
}

}  // namespace

bool is_white_space(char32_t code_point) {
  if (code_point < 0x80) return code_point == ' ' || (code_point >= '\t' && code_point <= '\r');
  return code_point == 0x85 || code_point == 0xA0 || code_point == 0x1680 ||
         (code_point >= 0x2000 && code_point <= 0x200A) || code_point == 0x2028 || code_point == 0x2029 ||
         code_point == 0x202F || code_point == 0x205F || code_point == 0x3000;
}

bool is_word_character(char32_t code_point) {
  // Circled and squared letters (category So) have the property Alphabetic; U+200C and U+200D have
  // the property Join_Control. The categories below exclude both.
  if ((code_point >= 0x24B6 && code_point <= 0x24E9) || (code_point >= 0x1F130 && code_point <= 0x1F149) ||
      (code_point >= 0x1F150 && code_point <= 0x1F169) || (code_point >= 0x1F170 && code_point <= 0x1F189) ||
      code_point == 0x200C || code_point == 0x200D) {
    return true;
  }
  const auto general_category = utf8proc_category(static_cast<utf8proc_int32_t>(code_point));
  return (general_category >= UTF8PROC_CATEGORY_LU && general_category <= UTF8PROC_CATEGORY_NL) ||
         general_category == UTF8PROC_CATEGORY_PC;
}

bool is_numeric(char32_t code_point) {
  if (code_point < 0x80) return code_point >= '0' && code_point <= '9';
  const auto general_category = utf8proc_category(static_cast<utf8proc_int32_t>(code_point));
  return general_category >= UTF8PROC_CATEGORY_ND && general_category <= UTF8PROC_CATEGORY_NO;
}

bool is_python_space(char32_t character) {
  return is_white_space(character) || (character >= 0x1C && character <= 0x1F);
}

bool is_printable(char32_t character) {
  switch (get_general_category(character)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
      return false;
    case UTF8PROC_CATEGORY_ZS:
      return character == ' ';
    default:
      return true;
  }
}

bool is_letter(char32_t character) {
  const utf8proc_category_t general_category = get_general_category(character);
  return general_category >= UTF8PROC_CATEGORY_LU && general_category <= UTF8PROC_CATEGORY_LO;
}

bool is_decimal(char32_t character) {
  return get_general_category(character) == UTF8PROC_CATEGORY_ND;
}

bool is_digit(char32_t character) {
  // Numeric_Type=Digit, which utf8proc does not provide: superscripts, subscripts and circled
  // digits. Rarer digits are not included.
  return is_decimal(character) || character == 0xB2 || character == 0xB3 || character == 0xB9 || character == 0x2070 ||
         (character >= 0x2074 && character <= 0x2079) || (character >= 0x2080 && character <= 0x2089) ||
         (character >= 0x2460 && character <= 0x2468);
}

bool is_uppercase(char32_t character) {
  return utf8proc_isupper(static_cast<utf8proc_int32_t>(character)) != 0;
}

bool is_lowercase(char32_t character) {
  return utf8proc_islower(static_cast<utf8proc_int32_t>(character)) != 0;
}

bool is_titlecase(char32_t character) {
  return get_general_category(character) == UTF8PROC_CATEGORY_LT;
}

std::string_view strip_white_space(std::string_view text) {
  size_t begin = 0;
  while (begin < text.size() && is_python_space(read_utf8(text, begin).code_point))
    begin = find_next_character(text, begin);
  size_t end = text.size();
  while (end > begin) {
    const size_t last_character_pos = find_previous_character(text, end);
    if (!is_python_space(read_utf8(text, last_character_pos).code_point)) break;
    end = last_character_pos;
  }
  return text.substr(begin, end - begin);
}

}  // namespace vlmtrain::text
