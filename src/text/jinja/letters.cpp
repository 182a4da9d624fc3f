#include "text/jinja/letters.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstring>

#include "text/jinja/special_casing.h"
#include "text/utf8.h"

namespace vlmtrain::text::jinja {
namespace {

utf8proc_category_t category(char32_t character) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(character));
}

bool is_cased(char32_t character) {
  return is_upper(character) || is_lower(character) || is_title(character);
}

void append_simple(char32_t character, std::string& out) {
  append_utf8(out, character);
}

/// Whether a sigma at `at` ends a word: it is then written otherwise.
bool ends_word(std::string_view text, size_t at) {
  const size_t next = next_character(text, at);
  const bool before = at > 0 && is_cased(read_utf8(text, previous_character(text, at)).code_point);
  return before && (next == text.size() || !is_cased(read_utf8(text, next).code_point));
}

template <class Append>
MarkedText in_case(const MarkedText& text, Append append) {
  MarkedText out;
  const std::string_view bytes = text.bytes();
  out.append_written(text, [&](size_t begin, size_t end, std::string& written) {
    for (size_t at = begin; at < end; at = next_character(bytes, at)) append(bytes, at, written);
  });
  return out;
}

}  // namespace

bool is_space(char32_t character) {
  return is_white_space(character) || (character >= 0x1C && character <= 0x1F);
}

bool is_printable(char32_t character) {
  switch (category(character)) {
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
  const utf8proc_category_t its = category(character);
  return its >= UTF8PROC_CATEGORY_LU && its <= UTF8PROC_CATEGORY_LO;
}

bool is_decimal(char32_t character) {
  return category(character) == UTF8PROC_CATEGORY_ND;
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
  return category(character) == UTF8PROC_CATEGORY_LT;
}

size_t next_character(std::string_view text, size_t at) {
  return at + read_utf8(text, at).bytes;
}

size_t previous_character(std::string_view text, size_t at) {
  do {
    --at;
  } while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xC0U) == 0x80U);
  return at;
}

size_t place_of(std::string_view text, size_t index) {
  size_t at = 0;
  for (; index > 0 && at < text.size(); --index) at = next_character(text, at);
  return at;
}

std::string_view stripped(std::string_view text) {
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

size_t find_text(std::string_view text, std::string_view what, size_t from) {
  if (from > text.size()) return std::string_view::npos;
  if (what.empty()) return from;
  const void* found = memmem(text.data() + from, text.size() - from, what.data(), what.size());
  return found == nullptr ? std::string_view::npos : static_cast<size_t>(static_cast<const char*>(found) - text.data());
}

void append_upper(std::string_view text, size_t at, std::string& out) {
  const char32_t character = read_utf8(text, at).code_point;
  if (!append_special(kSpecialUpper, character, out)) {
    append_simple(static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(character))), out);
  }
}

void append_lower(std::string_view text, size_t at, std::string& out) {
  const char32_t character = read_utf8(text, at).code_point;
  if (character == 0x3A3 && ends_word(text, at)) {
    append_simple(0x3C2, out);
  } else if (character == 0x130) {
    out += "i\xCC\x87";
  } else {
    append_simple(static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(character))), out);
  }
}

void append_title(std::string_view text, size_t at, std::string& out) {
  const char32_t character = read_utf8(text, at).code_point;
  if (!append_special(kSpecialTitle, character, out)) {
    append_simple(static_cast<char32_t>(utf8proc_totitle(static_cast<utf8proc_int32_t>(character))), out);
  }
}

MarkedText uppercase(const MarkedText& text) {
  return in_case(text, append_upper);
}

MarkedText lowercase(const MarkedText& text) {
  return in_case(text, append_lower);
}

}  // namespace vlmtrain::text::jinja
