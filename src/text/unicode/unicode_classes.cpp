#include "text/unicode/unicode_classes.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstring>

#include "text/unicode/case_mapping.h"
#include "text/unicode/utf8.h"

namespace vlmtrain::text::jinja {
namespace {

utf8proc_category_t get_category(char32_t character) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(character));
}

bool is_cased(char32_t character) {
  return is_upper(character) || is_lower(character) || is_title(character);
}

void append_character(char32_t character, std::string& out) {
  append_utf8(out, character);
}

/// Whether a sigma at `pos` ends a word: it is then written otherwise.
bool is_word_final(std::string_view text, size_t pos) {
  const size_t next = next_character(text, pos);
  const bool follows_cased = pos > 0 && is_cased(read_utf8(text, previous_character(text, pos)).code_point);
  return follows_cased && (next == text.size() || !is_cased(read_utf8(text, next).code_point));
}

template <class AppendConverted>
TrackedText convert_case(const TrackedText& text, AppendConverted append_converted) {
  TrackedText out;
  const std::string_view bytes = text.bytes();
  out.append_transformed(text, [&](size_t begin, size_t end, std::string& buffer) {
    for (size_t pos = begin; pos < end; pos = next_character(bytes, pos)) append_converted(bytes, pos, buffer);
  });
  return out;
}

}  // namespace

bool is_space(char32_t character) {
  return is_white_space(character) || (character >= 0x1C && character <= 0x1F);
}

bool is_printable(char32_t character) {
  switch (get_category(character)) {
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
  const utf8proc_category_t character_category = get_category(character);
  return character_category >= UTF8PROC_CATEGORY_LU && character_category <= UTF8PROC_CATEGORY_LO;
}

bool is_decimal(char32_t character) {
  return get_category(character) == UTF8PROC_CATEGORY_ND;
}

bool is_digit(char32_t character) {
  // Superscripts, subscripts and digits in circles.
  return is_decimal(character) || character == 0xB2 || character == 0xB3 || character == 0xB9 || character == 0x2070 ||
         (character >= 0x2074 && character <= 0x2079) || (character >= 0x2080 && character <= 0x2089) ||
         (character >= 0x2460 && character <= 0x2468);
}

bool is_upper(char32_t character) {
  return utf8proc_isupper(static_cast<utf8proc_int32_t>(character)) != 0;
}
bool is_lower(char32_t character) {
  return utf8proc_islower(static_cast<utf8proc_int32_t>(character)) != 0;
}
bool is_title(char32_t character) {
  return get_category(character) == UTF8PROC_CATEGORY_LT;
}

size_t next_character(std::string_view text, size_t pos) {
  return pos + read_utf8(text, pos).bytes;
}

size_t previous_character(std::string_view text, size_t pos) {
  do {
    --pos;
  } while (pos > 0 && (static_cast<unsigned char>(text[pos]) & 0xC0U) == 0x80U);
  return pos;
}

size_t to_byte_offset(std::string_view text, size_t index) {
  size_t pos = 0;
  for (; index > 0 && pos < text.size(); --index) pos = next_character(text, pos);
  return pos;
}

std::string_view strip_whitespace(std::string_view text) {
  size_t begin = 0;
  while (begin < text.size() && is_space(read_utf8(text, begin).code_point)) begin = next_character(text, begin);
  size_t end = text.size();
  while (end > begin) {
    const size_t last = previous_character(text, end);
    if (!is_space(read_utf8(text, last).code_point)) break;
    end = last;
  }
  return text.substr(begin, end - begin);
}

size_t find_text(std::string_view text, std::string_view needle, size_t pos) {
  if (pos > text.size()) return std::string_view::npos;
  if (needle.empty()) return pos;
  const void* match = memmem(text.data() + pos, text.size() - pos, needle.data(), needle.size());
  return match == nullptr ? std::string_view::npos : static_cast<size_t>(static_cast<const char*>(match) - text.data());
}

void append_upper(std::string_view text, size_t pos, std::string& out) {
  const char32_t character = read_utf8(text, pos).code_point;
  if (!append_special_case(kSpecialUpper, character, out)) {
    append_character(static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(character))), out);
  }
}

void append_lower(std::string_view text, size_t pos, std::string& out) {
  const char32_t character = read_utf8(text, pos).code_point;
  if (character == 0x3A3 && is_word_final(text, pos)) {
    append_character(0x3C2, out);
  } else if (character == 0x130) {
    out += "i\xCC\x87";
  } else {
    append_character(static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(character))), out);
  }
}

void append_title(std::string_view text, size_t pos, std::string& out) {
  const char32_t character = read_utf8(text, pos).code_point;
  if (!append_special_case(kSpecialTitle, character, out)) {
    append_character(static_cast<char32_t>(utf8proc_totitle(static_cast<utf8proc_int32_t>(character))), out);
  }
}

TrackedText to_upper(const TrackedText& text) {
  return convert_case(text, append_upper);
}

TrackedText to_lower(const TrackedText& text) {
  return convert_case(text, append_lower);
}

}  // namespace vlmtrain::text::jinja
