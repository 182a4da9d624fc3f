#include "text/unicode/unicode_classes.h"

#include <utf8proc.h>

#include "text/unicode/utf8.h"

namespace vlmtrain::text {
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
